package gap

import (
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

func TestAGapIsReadFromConnections(t *testing.T) {
	t.Parallel()
	t0 := time.Unix(1_000_000, 0)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	conn := func(start, done int, who string, f Fault) Conn {
		return Conn{Start: at(start), Done: at(done), Who: who, Fault: f}
	}
	for name, c := range map[string]struct {
		r    Result
		want Gap
	}{
		"a death with two failures": {
			Result{Conns: []Conn{
				conn(-4, -3, "a", None), conn(-2, 1, "", Reset), conn(0, 1, "", Refused), conn(2, 5, "b", None), conn(4, 6, "b", None),
			}},
			Gap{Gap: 5 * time.Millisecond, Failed: 2, Slowest: 3 * time.Millisecond, Faults: map[Fault]int{Reset: 1, Refused: 1}},
		},
		"failures after the first answer count too": {
			Result{Conns: []Conn{conn(2, 3, "b", None), conn(4, 204, "", Timeout)}},
			Gap{Gap: 3 * time.Millisecond, LastFail: 4 * time.Millisecond, Failed: 1, Slowest: time.Millisecond, Faults: map[Fault]int{Timeout: 1}},
		},
		"failures before the death do not": {
			Result{Conns: []Conn{conn(-9, -8, "", Refused), conn(1, 2, "b", None)}},
			Gap{Gap: 2 * time.Millisecond, Slowest: time.Millisecond, Faults: map[Fault]int{}},
		},
		"what the dead one had sent before is no answer": {
			Result{Conns: []Conn{conn(-1, 1, "a", None), conn(1, 120, "b", None)}},
			Gap{Gap: 120 * time.Millisecond, Slow: 1, Slowest: 119 * time.Millisecond, Faults: map[Fault]int{}},
		},
		"nobody survives": {
			Result{Conns: []Conn{conn(1, 2, "", Refused)}},
			Gap{Gap: -1, LastFail: time.Millisecond, Failed: 1, Faults: map[Fault]int{Refused: 1}},
		},
		"the client stood still in it": {
			Result{
				Conns:  []Conn{conn(1, 50, "b", None)},
				Stalls: []Stall{{At: at(-60), For: 30 * time.Millisecond}, {At: at(2), For: 40 * time.Millisecond}, {At: at(90), For: time.Second}},
			},
			Gap{Gap: 50 * time.Millisecond, Slowest: 49 * time.Millisecond, Faults: map[Fault]int{}, Stall: 40 * time.Millisecond},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := gocmp.Diff(c.want, c.r.After(t0, "b")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhoIsSteady(t *testing.T) {
	t.Parallel()
	t0 := time.Unix(1_000_000, 0)
	c := &Client{}
	for i, who := range []string{"a", "a", "", "b", "b", "b"} {
		c.note(Conn{Start: t0, Done: t0.Add(time.Duration(i) * time.Second), Who: who})
	}
	if who, since := c.Steady(); who != "b" || !since.Equal(t0.Add(3*time.Second)) {
		t.Errorf("%q since %s", who, since)
	}
	c.note(Conn{Start: t0, Done: t0.Add(9 * time.Second), Fault: Refused})
	if who, _ := c.Steady(); who != "" {
		t.Errorf("%q is steady after a failure", who)
	}
}

func TestTheLongestSilence(t *testing.T) {
	t.Parallel()
	t0 := time.Unix(1_000_000, 0)
	var r Result
	for _, ms := range []int{1, 2, 40, 41} {
		r.Conns = append(r.Conns, Conn{Start: t0, Done: t0.Add(time.Duration(ms) * time.Millisecond), Who: "a"})
	}
	r.Conns = append(r.Conns, Conn{Start: t0, Done: t0.Add(20 * time.Millisecond), Fault: Refused})
	if d, at := r.Silence(t0); d != 38*time.Millisecond || !at.Equal(t0.Add(2*time.Millisecond)) {
		t.Errorf("%s from %s on", d, at.Sub(t0))
	}
	if diff := gocmp.Diff(map[string]int{"a": 4, "": 1}, r.By(t0)); diff != "" {
		t.Error(diff)
	}
}
