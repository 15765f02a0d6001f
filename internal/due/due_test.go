package due_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/due"
)

type thing struct {
	due.Entry
	name int
}

// Whatever is set, moved and removed: the first is always one of those with the least time,
// and an item knows whether it is in.
func TestQueueIsOrdered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q due.Queue[*thing]
		things := make([]*thing, 8)
		for i := range things {
			things[i] = &thing{name: i}
		}
		in := map[*thing]time.Time{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			x := things[rapid.IntRange(0, len(things)-1).Draw(t, "thing")]
			if rapid.Bool().Draw(t, "remove") {
				q.Remove(x)
				delete(in, x)
			} else {
				at := time.Unix(rapid.Int64Range(0, 5).Draw(t, "when"), 0)
				q.Set(x, at)
				in[x] = at
			}
			for _, y := range things {
				if _, want := in[y]; y.Queued() != want || want && !y.When().Equal(in[y]) {
					t.Fatalf("thing %d: queued %v, due %s, want %v, %s", y.name, y.Queued(), y.When(), want, in[y])
				}
			}
			first, ok := q.First()
			if ok != (len(in) > 0) {
				t.Fatalf("there is a first: %v, with %d in", ok, len(in))
			}
			for _, at := range in {
				if at.Before(first.When()) {
					t.Fatalf("the first is due at %s, another one at %s", first.When(), at)
				}
			}
		}
	})
}

func TestQueueComesOutInOrder(t *testing.T) {
	var q due.Queue[*thing]
	for i, s := range []int64{4, 1, 3, 0, 2} {
		q.Set(&thing{name: i}, time.Unix(s, 0))
	}
	var got []int64
	for x, ok := q.First(); ok; x, ok = q.First() {
		got = append(got, x.When().Unix())
		q.Remove(x)
	}
	if !slices.Equal(got, []int64{0, 1, 2, 3, 4}) {
		t.Errorf("out came %v", got)
	}
}
