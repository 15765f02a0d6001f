package health

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func good() Sample {
	return Sample{Device: true, Peer: true, Pings: true, TLS: true, FullSize: true}
}

func TestJudge(t *testing.T) {
	policy := Policy{Threshold: 2, Rise: 2}
	silent := good()
	silent.Pings = false
	busy := silent
	busy.RxGrew = 90_000
	keepalive := silent
	keepalive.RxGrew = 32
	deep := func(tls, full bool) Sample {
		s := good()
		s.Deep, s.TLS, s.FullSize = true, tls, full
		return s
	}
	half := deep(false, false)
	half.HalfSize = true
	gone := good()
	gone.Device = false
	tests := map[string]struct {
		samples []Sample
		want    []Verdict
		reason  Reason
	}{
		"answers":                            {[]Sample{good(), good()}, []Verdict{Up, Up}, ReasonNone},
		"one silent round is only suspicion": {[]Sample{silent, good(), silent}, []Verdict{Suspect, Up, Suspect}, ReasonSilent},
		"two silent rounds in a row":         {[]Sample{silent, silent}, []Verdict{Suspect, Down}, ReasonSilent},
		"arriving bytes veto silence":        {[]Sample{busy, busy, busy, busy}, []Verdict{Loaded, Loaded, Loaded, Loaded}, ReasonNone},
		"a busy round between breaks a row":  {[]Sample{silent, busy, silent}, []Verdict{Suspect, Loaded, Suspect}, ReasonSilent},
		"a keepalive proves nothing":         {[]Sample{keepalive, keepalive}, []Verdict{Suspect, Down}, ReasonSilent},
		"interface gone":                     {[]Sample{gone, gone}, []Verdict{Suspect, Down}, ReasonNoDevice},
		"a path too small for TLS as well":   {[]Sample{half, half}, []Verdict{Suspect, Down}, ReasonMTU},
		"data choked":                        {[]Sample{deep(false, false), deep(false, false)}, []Verdict{Suspect, Down}, ReasonChoked},
		"full size lost":                     {[]Sample{deep(true, false), deep(true, false)}, []Verdict{Suspect, Down}, ReasonMTU},
		"no tls":                             {[]Sample{deep(false, true), deep(false, true)}, []Verdict{Suspect, Down}, ReasonNoData},
		"a deep failure isn't healed by pings alone": {
			[]Sample{deep(false, true), good(), deep(false, true)},
			[]Verdict{Suspect, Suspect, Down},
			ReasonNoData,
		},
		"a deep failure is healed by a deep success": {[]Sample{deep(false, true), deep(true, true)}, []Verdict{Suspect, Up}, ReasonNone},
		"coming back takes rise rounds":              {[]Sample{silent, silent, good(), good()}, []Verdict{Suspect, Down, Rising, Up}, ReasonNone},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var m Memory
			var got []Verdict
			for _, s := range tt.samples {
				var v Verdict
				v, m = Judge(m, s, policy)
				got = append(got, v)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("verdicts (-want +got):\n%s", d)
			}
			if m.Reason != tt.reason {
				t.Errorf("reason %q, want %q", m.Reason, tt.reason)
			}
		})
	}
}

// Whatever the samples: a lane is never down before `threshold` failures, arriving bytes
// never make a lane down for lost pings alone, and a lane that failed a deep rung is never called up by pings.
func TestJudgeHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{Threshold: rapid.IntRange(1, 4).Draw(t, "threshold"), Rise: rapid.IntRange(1, 4).Draw(t, "rise")}
		var m Memory
		fails := 0
		for range rapid.IntRange(1, 30).Draw(t, "rounds") {
			s := Sample{
				Device: true, Peer: true, Pings: rapid.Bool().Draw(t, "pings"), Deep: rapid.Bool().Draw(t, "deep"),
				TLS: rapid.Bool().Draw(t, "tls"), FullSize: rapid.Bool().Draw(t, "full"),
				RxGrew: rapid.Int64Range(0, 2*VetoBytes).Draw(t, "rx"),
			}
			before := m
			var v Verdict
			v, m = Judge(m, s, p)
			vetoed := !s.Pings && s.RxGrew >= VetoBytes
			deep := s.Deep && (!s.TLS || s.Pings && !s.FullSize) // under load a full-size packet may be lost
			failed := !s.Pings && !vetoed || (s.Pings || vetoed) && deep
			if failed {
				fails++
			}
			if v == Down && !before.Down && fails < p.Threshold {
				t.Fatalf("down after %d failures, threshold %d", fails, p.Threshold)
			}
			if v == Down && !before.Down && !failed {
				t.Fatalf("became down by a sample that did not fail: %+v", s)
			}
			if before.DeepMisses > 0 && !s.Deep && (v == Up || v == Loaded) {
				t.Fatal("a failed deep rung was forgotten without another try")
			}
			if v == Up && failed {
				t.Fatal("a failed round is up")
			}
		}
	})
}

func TestDeepDue(t *testing.T) {
	now := time.Date(2026, 11, 30, 4, 20, 0, 0, time.UTC)
	tests := map[string]struct {
		m    Memory
		last time.Time
		want bool
	}{
		"never done":              {Memory{}, time.Time{}, true},
		"just done":               {Memory{}, now.Add(-time.Second), false},
		"long ago":                {Memory{}, now.Add(-5 * time.Second), true},
		"a hair too early":        {Memory{}, now.Add(-4990 * time.Millisecond), true},
		"a round too early":       {Memory{}, now.Add(-4 * time.Second), false},
		"failed last time":        {Memory{DeepMisses: 1}, now, true},
		"the clock went back":     {Memory{}, now.AddDate(2, 0, 0), true},
		"a down lane wants proof": {Memory{Down: true}, now, true},
	}
	for name, tt := range tests {
		if got := DeepDue(tt.m, tt.last, now, 5*time.Second); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
