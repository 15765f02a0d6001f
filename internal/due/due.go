// Package due keeps things in the order of the times at which something is to be done with
// them. It reads no clock.
package due

import (
	"container/heap"
	"time"
)

// Entry is what a thing embeds to be kept in one Queue at a time. The zero value is in none.
type Entry struct {
	when  time.Time
	place int // 1 + its index in the heap; 0 = in no queue
}

// When is the time that it was last set to.
func (e *Entry) When() time.Time { return e.when }

// Queued says whether it is in a queue.
func (e *Entry) Queued() bool { return e.place > 0 }

func (e *Entry) entry() *Entry { return e }

// Item is a pointer to a thing that embeds an Entry.
type Item interface{ entry() *Entry }

// Queue orders items by time. The zero value is empty. The caller excludes concurrent use.
type Queue[T Item] struct{ items list[T] }

// First is the item that is due first, and false when there is none. It stays in the queue.
func (q *Queue[T]) First() (T, bool) {
	if len(q.items) == 0 {
		var none T
		return none, false
	}
	return q.items[0], true
}

// Set puts an item in, or moves it to another time.
func (q *Queue[T]) Set(x T, when time.Time) {
	e := x.entry()
	e.when = when
	if e.place > 0 {
		heap.Fix(&q.items, e.place-1)
		return
	}
	heap.Push(&q.items, x)
}

// Remove takes an item out; that it is not in is no fault.
func (q *Queue[T]) Remove(x T) {
	if e := x.entry(); e.place > 0 {
		heap.Remove(&q.items, e.place-1)
	}
}

// list is a heap of items for container/heap.
type list[T Item] []T

func (l list[T]) Len() int           { return len(l) }
func (l list[T]) Less(i, j int) bool { return l[i].entry().when.Before(l[j].entry().when) }
func (l list[T]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].entry().place, l[j].entry().place = i+1, j+1
}

// Push is for container/heap.
func (l *list[T]) Push(x any) {
	item := x.(T)
	*l = append(*l, item)
	item.entry().place = len(*l)
}

// Pop is for container/heap.
func (l *list[T]) Pop() any {
	old := *l
	last := len(old) - 1
	item := old[last]
	var none T
	old[last] = none
	*l = old[:last]
	item.entry().place = 0
	return item
}
