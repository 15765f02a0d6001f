package watchdog

import "time"

// stall is a time in which this process wanted to run and did not.
type stall struct{ from, to time.Time }

// stalls notices when we are late: a timekeeper that sleeps until a moment says when it
// woke. The caller excludes concurrent use.
type stalls struct {
	until   time.Time // the timekeeper sleeps until then
	seen    [16]stall
	next    int
	n       uint64
	longest time.Duration
	fresh   time.Duration // the longest that was not told yet
}

// tolerated is a delay that any busy machine has.
const tolerated = 3 * time.Millisecond

// noted is a delay that people should hear of.
const noted = 250 * time.Millisecond

func (s *stalls) sleep(until time.Time) { s.until = until }

func (s *stalls) woke(now time.Time) {
	d := now.Sub(s.until)
	if s.until.IsZero() || d <= tolerated {
		return
	}
	s.seen[s.next] = stall{s.until, now}
	s.next = (s.next + 1) % len(s.seen)
	s.n++
	s.longest, s.fresh = max(s.longest, d), max(s.fresh, d)
}

// spare is how much of a cap we may have lost, for the rest of it to count: a quarter, and
// of a short one more, as long as what is left is many times what a near host takes to
// answer. Each miss that does not count costs a whole cap more.
func spare(limit time.Duration) time.Duration {
	return max(limit/4, min(limit/2, 10*time.Millisecond))
}

// spoil says whether the silence between two moments may be our own: the end came later
// than the cap allows, or we did not run for a good part of it.
func (s *stalls) spoil(from, to time.Time, limit time.Duration) bool {
	if to.Sub(from) > limit+max(limit/20, 5*time.Millisecond) {
		return true
	}
	lost := time.Duration(0)
	for _, x := range s.seen {
		lost += overlap(x, from, to)
	}
	if now := to; !s.until.IsZero() && now.Sub(s.until) > tolerated { // the timekeeper has not woken yet
		lost += overlap(stall{s.until, now}, from, to)
	}
	return lost > spare(limit)
}

func overlap(x stall, from, to time.Time) time.Duration {
	if x.from.After(from) {
		from = x.from
	}
	if x.to.Before(to) {
		to = x.to
	}
	return max(0, to.Sub(from))
}

// news is the longest delay since the last call, when people should hear of it.
func (s *stalls) news() time.Duration {
	d := s.fresh
	s.fresh = 0
	if d < noted {
		return 0
	}
	return d
}
