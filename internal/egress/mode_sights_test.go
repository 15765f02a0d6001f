package egress

import "time"

// sight is what the observations of a situation depend on.
type sight struct {
	open, alive, direct, astray, owed bool
}

// observations are all that a run may see: how lanes and the uplink are, together with what
// ended or was placed; beside that each of the other things, one at a time. Some looks
// contradict each other, as those do that are taken one after another.
func (v sight) observations() []*ModeObservation {
	var out []*ModeObservation
	for _, o := range []ModeObservation{{Uplink: true, Exhausted: true}, {Uplink: true}, {Uplink: true, Healthy: 1}, {Uplink: true, Healthy: 1, AllUp: true}, {}} {
		if o.AllUp && v.direct { // of no meaning there
			continue
		}
		v.common(&o)
		ends, placed := v.ends(o), v.placed(o)
		out = append(append(append(append(out, &o), ends...), placed...), v.beside(o)...)
		if v.direct {
			out = append(out, slots(o)...)
			if len(placed) > 0 && o.Uplink { // a pool is placed, and fills what it can
				out = append(out, slots(*placed[0])...)
			}
		}
		if len(ends) > 0 && ends[0].Ended.OK { // a replacement during the refresh
			during := *ends[0]
			during.Counts = []DayCount{{Day: "today", N: testCounted + 1}}
			out = append(out, &during)
		}
	}
	for _, o := range []ModeObservation{{Uplink: true, Healthy: 1, Exhausted: true}, {Exhausted: true}, {Healthy: 1}} {
		v.common(&o)
		out = append(append(out, &o), v.ends(o)...)
		if v.direct && !o.Exhausted {
			out = append(out, slots(o)...)
		}
	}
	return out
}

func (v sight) common(o *ModeObservation) {
	o.Astray, o.Attempting = v.astray, v.open && v.alive
	o.Counts = []DayCount{{Day: "today", N: testCounted}}
}

// ends adds what ended: an attempt, or a refresh that nobody asked for, also during one. An
// end that another run has booked already comes late.
func (v sight) ends(o ModeObservation) []*ModeObservation {
	begun := noon.Add(-30 * time.Second)
	var out []*ModeObservation
	add := func(ends ...AttemptEnd) {
		for _, e := range ends {
			o := o
			o.Ended, o.Attempting = &e, o.Attempting && e.Plain
			out = append(out, &o)
		}
	}
	own := []AttemptEnd{{OK: true, Began: begun, Strategy: "first"}, {Reason: "dead list"}, {Busy: true, Reason: "busy"}}
	if v.open && v.alive || !v.open && o.Uplink && o.Exhausted {
		add(own...)
	}
	if o.Uplink { // a refresh needs one
		add(AttemptEnd{OK: true, Plain: true, Began: begun})
	}
	add(AttemptEnd{Plain: true, Reason: "dead list"})
	return out
}

// placed adds how the placing of a pool ended, also of one that another run has booked already.
func (v sight) placed(o ModeObservation) []*ModeObservation {
	if v.open || !v.owed && (!o.Uplink || o.AllUp) {
		return nil
	}
	var out []*ModeObservation
	for _, r := range []RebuildEnd{{OK: true}, {Reason: "none passed"}, {OK: true, Busy: true}} {
		o := o
		o.Placed = &r
		out = append(out, &o)
	}
	return out
}

// slots adds what slots with fresh endpoints show.
func slots(o ModeObservation) []*ModeObservation {
	var out []*ModeObservation
	for _, show := range []ModeObservation{
		{Ready: true}, // a pool that fills nothing
		{Filled: 2, Strict: 1, Ready: true},
		{Filled: 2, Strict: 2},
		{Filled: 2, Strict: 2, Ready: true},
	} {
		o := o
		o.Filled, o.Strict, o.Ready = show.Filled, show.Strict, show.Ready
		out = append(out, &o)
	}
	return out
}

// beside adds each of the other things that may be seen.
func (v sight) beside(o ModeObservation) []*ModeObservation {
	count, failing, refreshing, attempting, force := o, o, o, o, o
	count.Counts = []DayCount{{Day: "today", N: testCounted + 1}}
	failing.Failing = "egress1: silent"
	refreshing.Refreshing, attempting.Attempting, force.Force = true, true, true
	out := []*ModeObservation{&count, &refreshing, &force}
	if !o.Attempting {
		out = append(out, &attempting)
	}
	if o.Healthy == 0 && !v.direct {
		out = append(out, &failing)
	}
	if o.Uplink {
		o.Returned = true
		out = append(out, &o)
	}
	return out
}
