package watchdog

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/state"
)

const (
	desk       = 128 // events that wait for the disk; what comes on top is lost
	clerkLimit = 5 * time.Second
)

// clerk tells and journals the watchdog's own troubles, each when it begins and when it
// is over. It writes behind everybody's back, for the disk may be slow.
type clerk struct {
	w     *Watchdog
	queue chan journal.Event
	done  chan struct{}

	mu       sync.Mutex
	troubles map[string]string // object -> what is wrong with it
	closed   bool
}

func newClerk(w *Watchdog) *clerk {
	c := &clerk{w: w, queue: make(chan journal.Event, desk), troubles: map[string]string{}}
	c.done = background(c.run)
	return c
}

func (c *clerk) run() {
	for ev := range c.queue {
		list := []journal.Event{ev}
		for len(c.queue) > 0 {
			list = append(list, <-c.queue)
		}
		if err := c.append(list); err != nil {
			c.w.tell(Event{Kind: EventFailed, Object: "journal", Err: err})
		}
	}
}

func (c *clerk) append(list []journal.Event) error {
	ctx, cancel := context.WithTimeout(context.Background(), clerkLimit)
	defer cancel()
	return c.w.o.note(ctx, list)
}

// appendTo writes events of one run number into the journal.
func appendTo(ctx context.Context, d *state.Dir, list []journal.Event) error {
	seq, err := d.NextSeq(ctx)
	if err != nil {
		return err
	}
	for i := range list {
		list[i].Seq, list[i].Run = seq, fmt.Sprintf("watchdog-%d", seq)
	}
	return journal.Append(ctx, d, list...)
}

func (c *clerk) write(kind, object, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	select {
	case c.queue <- journal.Event{Time: c.w.o.Now(), Command: "watchdog", Kind: kind, Object: object, Reason: reason}:
	default:
	}
}

// trouble says that an object can't be watched, or, with nil, that it can.
func (c *clerk) trouble(object string, err error) {
	c.mu.Lock()
	was, had := c.troubles[object]
	if err != nil {
		c.troubles[object] = err.Error()
	} else {
		delete(c.troubles, object)
	}
	c.mu.Unlock()
	switch {
	case err != nil && !had:
		c.w.tell(Event{Kind: EventFailed, Object: object, Text: err.Error(), Err: err})
		c.write("fails", object, err.Error())
	case err == nil && had:
		c.w.tell(Event{Kind: EventBack, Object: object, Text: "works again"})
		c.write("settled", object, "works again; it was: "+was)
	}
}

// now are the troubles that last.
func (c *clerk) now() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.troubles)
}

// givenUp says that a candidate's connections never last, so that only probes watch it, or
// that they last again.
func (c *clerk) givenUp(name string, given bool, reason string) {
	if given {
		c.w.tell(Event{Kind: EventGivenUp, Object: name, Text: reason})
		c.write("tripwire", name, reason)
		return
	}
	c.w.tell(Event{Kind: EventBack, Object: name, Text: "its tripwire holds again"})
	c.write("tripwire", name, "its tripwire holds again")
}

// late says that this process did not run for a while.
func (c *clerk) late(d time.Duration) {
	text := fmt.Sprintf("did not run for %s: what was missed meanwhile does not count", d.Round(time.Millisecond))
	c.w.tell(Event{Kind: EventLate, Object: "watchdog", Text: text, Took: d})
	c.write("late", "watchdog", text)
}

// close writes what is left. What is said after is only told.
func (c *clerk) close() {
	c.mu.Lock()
	c.closed = true
	close(c.queue)
	c.mu.Unlock()
	<-c.done
}
