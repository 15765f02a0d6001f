package story

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ti-mo/conntrack"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/plane"
	"github.com/shunt-net/shunt/internal/state"
)

// homeWithin bounds the way home from a tour's last leg: repairs, one after another.
const homeWithin = 20 * time.Second

// modesSeen is what the files and the kernel say of modes.
type modesSeen struct {
	mode   state.Mode
	memory egress.ModeMemory
	table  bool              // that of the user plane is there
	at     map[string]string // class -> lane, plane.Direct, or "" for none
}

// declared says whether the files declare a class to be direct.
func (s modesSeen) declared(class string) bool {
	_, hand := s.memory.Manual[class]
	return hand || (s.mode == state.ModeDirect || s.mode == state.ModeExternalRecovery) && s.memory.Declared
}

func (k *killer) readModes() (modesSeen, error) {
	s := modesSeen{at: map[string]string{}}
	d, err := state.OpenRead(k.w.State)
	if err != nil {
		return s, err
	}
	kv, err := d.KV()
	if err != nil {
		return s, err
	}
	s.mode = kv.Mode()
	var m egress.Memory
	if err := d.ReadJSON("egress.json", &m); err != nil {
		return s, err
	}
	s.memory = m.Modes
	sets, err := k.steering()
	if err != nil {
		return s, err
	}
	s.table = len(sets) > 0
	for _, l := range k.w.Lanes {
		v4, err := k.placeIn(sets, "to_", uint32(l.DSCP))
		v6, err6 := k.placeIn(sets, "to6_", uint32(l.Mark))
		switch {
		case err != nil || err6 != nil:
			return s, fmt.Errorf("the class of %s: %w", l.Name, errors.Join(err, err6))
		case v4 != v6:
			return s, fmt.Errorf("the class of %s is on %q, and on %q by IPv6", l.Name, v4, v6)
		}
		s.at[l.Name] = v4
	}
	return s, nil
}

// placeIn is the one place whose set holds a class's key.
func (k *killer) placeIn(sets map[string][]uint32, prefix string, key uint32) (string, error) {
	place, found := "", 0
	for set, keys := range sets {
		if !strings.HasPrefix(set, prefix) || !slices.Contains(keys, key) {
			continue
		}
		found++
		place = strings.TrimPrefix(set, prefix)
		for _, l := range k.w.Lanes {
			if place == fmt.Sprint(l.Table) {
				place = l.Name
			}
		}
	}
	if found > 1 {
		return "", fmt.Errorf("it is in %d sets", found)
	}
	return place, nil
}

// checkInstant looks at what must be so at any instant: files that can be read, no user
// direct where that is not declared, and none in clear unless he is direct.
func (k *killer) checkInstant(f *findings) {
	s, err := k.readModes()
	if err != nil {
		f.add("%v", err)
		return
	}
	direct, declared := false, false
	for class, at := range s.at {
		declared = declared || s.declared(class)
		if at == plane.Direct {
			direct = true
			if !s.declared(class) {
				f.add("the class of %s is direct, and neither mode %q nor an order says so: %+v", class, s.mode, s.memory)
			}
		}
	}
	now, err := k.w.Uplink()
	if err != nil {
		f.add("%v", err)
		return
	}
	if d := now.Sub(k.base); ofUsers(d) > 0 && !direct && s.table && !k.mayBeDirect {
		f.add("%d packets of users left in clear, and no class is direct", ofUsers(d))
	}
	k.mayBeDirect = direct || declared || !s.table // a run that follows may move them there, and home again
	k.base = now
}

// checkModes looks at what the next runs must have made of a killed leg: each class is where
// the files say, nothing is half done, and the mode is what the world is.
func (k *killer) checkModes(l leg, f *findings) {
	s, err := k.readModes()
	if err != nil {
		f.add("%v", err)
		return
	}
	for _, x := range k.w.Lanes {
		at := s.at[x.Name]
		switch declared := s.declared(x.Name); {
		case declared && at != plane.Direct:
			f.add("the class of %s is declared direct, and is on %q", x.Name, at)
		case !declared && (at == plane.Direct || at == ""):
			f.add("the class of %s is on %q, and is not declared direct", x.Name, at)
		case l.users == "home" && at != x.Name || l.users == plane.Direct && at != plane.Direct:
			f.add("the class of %s is on %q, want %s", x.Name, at, l.users)
		}
		e, err := k.installedEndpoint(x)
		if err == nil {
			err = k.checkDevice(x, e)
		}
		if err != nil {
			f.add("%s: %v", x.Name, err)
		}
	}
	if len(l.modes) > 0 && !slices.Contains(l.modes, s.mode) {
		f.add("mode %q, want one of %v", s.mode, l.modes)
	}
	if !slices.Contains(state.Modes(), s.mode) {
		f.add("mode %q", s.mode)
	}
	k.checkFlows(s, f)
	if s.memory.Attempt != nil {
		f.add("an attempt of %s is open, and nobody makes it", s.memory.Attempt.Began.Format(time.TimeOnly))
	}
	left, _ := os.ReadDir(filepath.Join(k.w.State, "intents"))
	for _, e := range left {
		if !strings.HasPrefix(e.Name(), ".") {
			f.add("intent %s is left", e.Name())
		}
	}
	k.checkLocks(f)
}

// checkFlows wants no flow of a class on direct while the class is not, nor on its lane while
// it is direct: conntrack says which, by the marks that the user plane gives.
func (k *killer) checkFlows(s modesSeen, f *findings) {
	c := egress.Config{Plane: config.Default().Egress.Plane}
	for _, l := range k.w.Lanes {
		c.Lanes = append(c.Lanes, egress.Lane{Name: l.Name, Mark: l.Mark})
	}
	err := k.w.Router.Do(func() error {
		conn, err := conntrack.Dial(nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		for _, l := range c.Lanes {
			mark := uint32(c.ClassMark(l.Name))
			if s.at[l.Name] == plane.Direct {
				mark |= uint32(l.Mark)
			}
			both := uint32(c.Plane.ClassMask | c.Plane.MarkMask)
			left, err := conn.DumpFilter(conntrack.NewFilter().Mark(mark).MarkMask(both), nil)
			if err != nil {
				return err
			}
			if len(left) > 0 {
				f.add("the class of %s is on %q, and %d of its flows are still where it was: %v", l.Name, s.at[l.Name], len(left), left[0].TupleOrig)
			}
		}
		return nil
	})
	if err != nil {
		f.add("conntrack: %v", err)
	}
}

// homeAgain makes repairs until all is as in the morning, and looks at everything then.
func (k *killer) homeAgain(ctx context.Context, what string) error {
	end := leg{modes: []state.Mode{state.ModeNormal}, users: "home"}
	var f *findings
	for began := time.Now(); ; {
		f = &findings{}
		if k.checkModes(end, f); len(f.list) == 0 {
			break
		}
		if time.Since(began) > homeWithin || ctx.Err() != nil {
			return fmt.Errorf("%s: not home after %s: %v", what, homeWithin, f.list)
		}
		k.w.Shunt(ctx, plainRepair()...)
	}
	k.checkInstant(f)
	k.checkUsers(ctx, f)
	k.checkCounts(f)
	k.checkLeftovers(f)
	k.checkLeaks(f)
	if len(f.list) > 0 {
		return fmt.Errorf("%s: %v", what, f.list)
	}
	return ctx.Err()
}

// checkCounts wants each failure since the first tour recorded once and counted once.
func (k *killer) checkCounts(f *findings) {
	r, err := k.readRecords()
	if err != nil {
		f.add("%v", err)
		return
	}
	seen := map[string]bool{}
	for _, q := range r.quarantine {
		id := fmt.Sprint(q.Endpoint, q.FailedAt.Unix())
		if seen[id] {
			f.add("quarantine: %s is recorded twice for %s", q.Endpoint, q.FailedAt)
		}
		seen[id] = true
	}
	if rows, counted := len(r.quarantine)-k.wasRows, r.counted-k.wasCounted-k.byHand; rows != counted {
		f.add("%d failures are recorded since the first tour, %d are counted", rows, counted)
	}
}
