package egress

import (
	"fmt"
	"slices"
)

// uncarried says why no lane can carry what needs that; "" = one can.
func (c *Config) uncarried(needs string) string {
	if needs == "" || slices.ContainsFunc(c.Lanes, func(l Lane) bool { return l.Carries(needs) }) {
		return ""
	}
	return fmt.Sprintf("it needs %s, which no lane's driver carries", needs)
}

// carriedByAll says whether it does not matter which lane a row with that need is for.
func (c *Config) carriedByAll(needs string) bool {
	return !slices.ContainsFunc(c.Lanes, func(l Lane) bool { return !l.Carries(needs) })
}

// untestable says why an entry is not tested; "" = it is.
func (in *Input) untestable(e Entry) string {
	if e.Reason != "" {
		return e.Reason
	}
	return in.Config.uncarried(e.Needs)
}

func (in *Input) laneCarries(lane string, r Row) bool {
	l, ok := in.Config.Lane(lane)
	return ok && l.Carries(r.Needs)
}

func (r *repair) carries(l LaneView, c Row) bool { return r.in.laneCarries(l.Name, c) }

func (b *rebalance) carries(l LaneView, r Row) bool { return b.in.laneCarries(l.Name, r) }

// fits says whether a row may be the lane's after this run: what a lane carries already
// stays there, since nothing moves without need.
func (b *rebalance) fits(r Row, l LaneView) bool {
	if b.current[l.Name].endpoint == r.Endpoint {
		return true
	}
	for _, x := range b.in.Lanes {
		if b.current[x.Name].endpoint == r.Endpoint {
			return false
		}
	}
	return b.carries(l, r)
}

// share is the first row for a lane that leaves the most to the lanes after it; -1 = none.
func (b *rebalance) share(l LaneView, free []Row, later []LaneView, want []Row) int {
	later = slices.DeleteFunc(slices.Clone(later), func(x LaneView) bool {
		_, busy := b.in.Busy[x.Name]
		return busy || b.fixed(x) || slices.ContainsFunc(want, func(r Row) bool { return r.Endpoint == b.current[x.Name].endpoint })
	})
	best, most := -1, -1
	for i, r := range free {
		if !b.carries(l, r) {
			continue
		}
		rest := slices.Delete(slices.Clone(free), i, i+1)
		if n := matching(rest, later, b.fits); n > most {
			best, most = i, n
		}
		if most == min(len(rest), len(later)) {
			break
		}
	}
	return best
}

// matching is how many rows can be given to lanes, one each, where fits allows it: paths
// that free a lane by moving its row to another one are sought until there is none.
func matching(rows []Row, lanes []LaneView, fits func(Row, LaneView) bool) int {
	holder := make([]int, len(lanes)) // row, counted from 1
	var place func(i int, seen []bool) bool
	place = func(i int, seen []bool) bool {
		for k, l := range lanes {
			if seen[k] || !fits(rows[i], l) {
				continue
			}
			seen[k] = true
			if holder[k] == 0 || place(holder[k]-1, seen) {
				holder[k] = i + 1
				return true
			}
		}
		return false
	}
	n := 0
	for i := range rows {
		if place(i, make([]bool, len(lanes))) {
			n++
		}
	}
	return n
}
