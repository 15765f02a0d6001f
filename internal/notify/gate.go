package notify

import (
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

// gatesLimit bounds what is remembered of one target.
const gatesLimit = 1000

// gateKey is what min_gap counts for.
type gateKey struct{ kind, object string }

// gate lets one alert of its key through in each gap.
type gate struct {
	sent  time.Time
	muted int
	last  edge.Alert // that was muted
}

// pass lets an alert through, with what was muted before it, or mutes it. The caller holds mu.
func (t *target) pass(a edge.Alert, now time.Time, gap time.Duration) (message, bool) {
	if gap <= 0 {
		return message{Alert: a}, true
	}
	key := gateKey{a.Kind, a.Object}
	g, ok := t.gates[key]
	if !ok {
		t.forget(now, gap)
		g = &gate{}
		t.gates[key] = g
	} else if d := now.Sub(g.sent); d >= 0 && d < gap { // a clock that was set back mutes nobody
		g.muted++
		g.last = a
		return message{}, false
	}
	m := message{Alert: a, Muted: g.muted}
	*g = gate{sent: now}
	return m, true
}

// forget makes room where there are many keys. What was muted goes with its key only when
// there is no other way.
func (t *target) forget(now time.Time, gap time.Duration) {
	if len(t.gates) < gatesLimit {
		return
	}
	for k, g := range t.gates {
		if d := now.Sub(g.sent); g.muted == 0 && (d < 0 || d >= gap) {
			delete(t.gates, k)
		}
	}
	for k := range t.gates {
		if len(t.gates) < gatesLimit {
			return
		}
		delete(t.gates, k)
	}
}

// untold are the last alerts of each key that was muted since something was sent: without
// them people would keep believing what they heard first. The caller holds mu.
func (t *target) untold() []message {
	var out []message
	for _, g := range t.gates {
		if g.muted > 0 {
			out = append(out, message{Alert: g.last, Muted: g.muted - 1})
			g.muted = 0
		}
	}
	slices.SortFunc(out, func(a, b message) int {
		if c := a.At.Compare(b.At); c != 0 {
			return c
		}
		return strings.Compare(a.Kind+a.Object, b.Kind+b.Object)
	})
	return out
}
