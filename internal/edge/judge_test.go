package edge

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestFold(t *testing.T) {
	now := noon.UnixMilli()
	probe := Probe{Type: ProbeTCP, Interval: time.Second, Misses: 2, Rise: 2}
	j := judgment{now: now, vetoFor: 30 * time.Second, by: "retarget on core-01"}
	veto := func(left int64) *Veto { return &Veto{Since: now/1000 - 60, Until: now/1000 + left} }
	ago := func(d time.Duration) int64 { return now - d.Milliseconds() }
	type end struct {
		Misses, Goods int
		Vetoed        bool
		Left          int64 // seconds of the veto
	}
	for name, tt := range map[string]struct {
		was       standing
		answers   []Answer
		confirmed bool
		want      end
	}{
		"first good":           {answers: []Answer{{Outcome: Good}}, want: end{Goods: 1}},
		"first miss":           {answers: []Answer{{Outcome: Miss}}, want: end{Misses: 1}},
		"second miss in a row": {standing{health: Health{Misses: 1, Asked: ago(time.Second)}}, []Answer{{Outcome: Miss}}, false, end{Misses: 2, Vetoed: true, Left: 30}},
		"confirmed":            {standing{}, []Answer{{Outcome: Miss}}, true, end{Misses: 2, Vetoed: true, Left: 30}},
		"unknown":              {standing{health: Health{Misses: 1, Asked: ago(time.Second)}}, []Answer{{}}, false, end{Misses: 1}},
		"a miss long ago is not in a row": {
			standing{health: Health{Misses: 1, Asked: ago(time.Minute)}},
			[]Answer{{Outcome: Miss}},
			false,
			end{Misses: 1},
		},
		"older than what is known": {
			standing{health: Health{Goods: 5, Asked: ago(time.Second)}},
			[]Answer{{Outcome: Miss, At: ago(2 * time.Second)}, {Outcome: Miss, At: ago(2 * time.Second)}},
			false,
			end{Goods: 5},
		},
		"older, but confirmed": {
			standing{health: Health{Goods: 5, Asked: ago(time.Second)}},
			[]Answer{{Outcome: Miss, At: ago(2 * time.Second)}},
			true,
			end{Misses: 2, Vetoed: true, Left: 30},
		},
		"known from the future: the clock was set back": {
			standing{health: Health{Misses: 1, Asked: now + 3600_000}},
			[]Answer{{Outcome: Miss}},
			false,
			end{Misses: 1},
		},
		"answered in the future is now": {
			standing{}, []Answer{{Outcome: Good, At: now + 3600_000}}, false, end{Goods: 1},
		},
		"a further miss moves a veto on": {
			standing{health: Health{Misses: 2, Asked: ago(time.Second)}, veto: veto(3)},
			[]Answer{{Outcome: Miss}},
			false,
			end{Misses: 3, Vetoed: true, Left: 30},
		},
		"rising": {
			standing{health: Health{Misses: 9, Asked: ago(time.Second)}, veto: veto(3)},
			[]Answer{{Outcome: Good}},
			false,
			end{Goods: 1, Vetoed: true, Left: 3},
		},
		"risen": {
			standing{health: Health{Misses: 9, Asked: ago(time.Second)}, veto: veto(3)},
			[]Answer{{Outcome: Good}, {Outcome: Good}},
			false,
			end{Goods: 2},
		},
		"a miss while it rises": {
			standing{health: Health{Goods: 1, Asked: ago(time.Second)}, veto: veto(3)},
			[]Answer{{Outcome: Miss}},
			false,
			end{Misses: 1, Vetoed: true, Left: 30},
		},
	} {
		t.Run(name, func(t *testing.T) {
			st := tt.was
			for _, a := range tt.answers {
				st = j.fold(st, probe, a, tt.confirmed)
			}
			got := end{Misses: st.health.Misses, Goods: st.health.Goods, Vetoed: st.veto != nil}
			if st.veto != nil {
				got.Left = st.veto.Until - now/1000
			}
			same(t, name, tt.want, got)
		})
	}
}

// A veto says what was seen: how often in a row a candidate was missed, or what a burst found.
func TestTheWordsOfAVeto(t *testing.T) {
	miss := Answer{Outcome: Miss, Reason: "no answer within 700ms"}
	burst := Answer{Outcome: Miss, Reason: "tripwire closed, then connection refused"}
	for name, tt := range map[string]struct {
		misses    int // that a veto needs
		before    []Answer
		last      Answer
		confirmed bool
		want      string
	}{
		"two probes":             {2, []Answer{miss}, miss, false, "2 misses in a row: no answer within 700ms"},
		"one probe is enough":    {1, nil, miss, false, "1 miss: no answer within 700ms"},
		"a burst":                {2, nil, burst, true, "tripwire closed, then connection refused"},
		"a burst after a probe":  {3, []Answer{miss}, burst, true, "tripwire closed, then connection refused"},
		"a probe and a burst":    {2, []Answer{miss}, burst, true, "2 misses in a row: tripwire closed, then connection refused"},
		"a burst without a word": {2, nil, Answer{Outcome: Miss}, true, "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Probe{Type: ProbeTCP, Interval: time.Second, Misses: tt.misses, Rise: 1}
			j := judgment{now: noon.UnixMilli(), vetoFor: 30 * time.Second}
			var st standing
			for _, a := range tt.before {
				st = j.fold(st, p, a, false)
			}
			st = j.fold(st, p, tt.last, tt.confirmed)
			if st.veto == nil || st.veto.Reason != tt.want {
				t.Errorf("%+v, want %q", st.veto, tt.want)
			}
		})
	}
}

// A slow probe asks seldom: its veto must not run out between two misses.
func TestAVetoOutlivesTheIntervalOfItsProbe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Probe{Interval: time.Duration(rapid.Int64Range(10, 600_000).Draw(t, "interval")) * time.Millisecond, Misses: rapid.IntRange(1, 5).Draw(t, "misses"), Rise: 1}
		j := judgment{now: noon.UnixMilli(), vetoFor: time.Duration(rapid.IntRange(1, 60).Draw(t, "veto_for")) * time.Second}
		var st standing
		for range p.Misses + 5 {
			was := st.veto != nil
			if was && !j.live(st.veto) {
				t.Fatalf("ran out between two misses of %s", p.Interval)
			}
			st = j.fold(st, p, Answer{Outcome: Miss, At: j.now}, false)
			j.now += p.Interval.Milliseconds()
		}
		if st.veto == nil {
			t.Fatal("no veto")
		}
	})
}

func TestHoldsRunOut(t *testing.T) {
	now := noon.UnixMilli()
	for name, tt := range map[string]struct {
		until int64
		want  bool
	}{
		"without an end": {0, true},
		"in a second":    {now/1000 + 1, true},
		"now":            {now / 1000, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (Hold{Until: tt.until}).holdsNow(now); got != tt.want {
				t.Errorf("holds: %v", got)
			}
		})
	}
}
