package tripwire

import "time"

// habit is what is known of how a server treats idle connections.
type habit struct {
	learned time.Duration // it ends them after so long; 0 = it does not, as far as we know
	last    time.Duration // life of the last connection that it ended and lived on
	short   int           // short lives in a row
}

// ended takes notice that the server ended a connection of that age and says whether that
// was to be expected.
func (h *habit) ended(life time.Duration, o Options) (expected bool) {
	if life >= o.Short {
		return h.learned > 0 && life >= h.renew()
	}
	expected = h.short > 0 || h.learned == 0 && life < o.Accept
	h.short++
	return expected
}

// lasted takes notice that a connection has grown older than a short life.
func (h *habit) lasted() { h.short = 0 }

// livedOn takes notice that the server answers again at once after it ended a connection of
// that age: so it was no death. Two lives alike are a habit; one may be a worker's end.
func (h *habit) livedOn(life time.Duration, o Options) {
	if life < o.Short {
		return
	}
	if alike(h.last, life) {
		h.learned = min(h.last, life)
	}
	h.last = life
}

// died takes notice that the server did not answer after it ended a connection of that age:
// so that end says nothing of its habits.
func (h *habit) died(life time.Duration, o Options) {
	if life < o.Short {
		h.short = max(0, h.short-1)
	}
}

// renew is the age at which a connection is replaced, before the server ends it; 0 = never.
func (h *habit) renew() time.Duration { return h.learned / 10 * 8 }

// alike says whether two lives differ by at most a fifth.
func alike(a, b time.Duration) bool { return max(a, b)-min(a, b) <= max(a, b)/5 }

// crowd remembers the last hints and how many wires stood before each.
type crowd struct {
	seen [64]struct {
		at    time.Time
		stood int
	}
	next, n int
}

// add remembers a hint; stood counts what was watched, the broken one included.
func (c *crowd) add(at time.Time, stood int) {
	c.seen[c.next].at, c.seen[c.next].stood = at, stood
	c.next = (c.next + 1) % len(c.seen)
	c.n = min(c.n+1, len(c.seen))
}

// most says whether more than half of all, and at least two, broke within that window
// around a moment. More than fit into the memory are many in any case.
func (c *crowd) most(at time.Time, window time.Duration) bool {
	broken, stood := 0, 0
	for _, e := range c.seen[:c.n] {
		if at.Sub(e.at).Abs() <= window {
			broken++
			stood = max(stood, e.stood)
		}
	}
	return broken >= 2 && (2*broken > stood || broken == len(c.seen))
}
