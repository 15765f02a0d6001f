package edgestory

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab/gap"
	"github.com/shunt-net/shunt/internal/lab/peer"
)

// The bounds of edge-bench.
const (
	benchDivert = 1.2  // of the better tuned proxy's median gap at a process's death
	benchSilent = 0.65 // of tuned HAProxy's median gap at a host's death
)

// conditions tells what is measured on, and the tuned settings of the peers.
func (b *bench) conditions(ctx context.Context) {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		b.e.Say("Linux %s, %d cores", unix.ByteSliceToString(u.Release[:]), runtime.NumCPU())
	}
	b.e.Say("%d rounds, %d deaths of each kind in each of those that a bound is about, half of that of others, an eighth where each takes seconds; one address of IPv4, clients connect each 2 ms", b.rounds, b.deaths)
	told := map[string]bool{}
	for _, s := range peer.Settings() {
		if !slices.ContainsFunc(b.list, func(c *contender) bool { return c.name == s.Name }) {
			continue
		}
		if v := s.Version(ctx); v != "" && !told[v] {
			told[v] = true
			b.e.Say("%s", v)
		}
	}
	for _, s := range peer.Settings() {
		if text, err := s.Text(); err == nil && strings.HasSuffix(s.Name, "-tuned") {
			b.e.Say("%s:\n%s", s.Name, text)
		}
	}
}

// row is what is told of a contender's deaths of one kind.
type row struct {
	name          string
	n             int
	median, p99   float64 // ms; below 100 deaths the p99 is the longest
	failed, worst int     // median and most
	slow          int     // most
}

func rowOf(name string, gaps []gap.Gap) row {
	var ms, failed []float64
	r := row{name: name, n: len(gaps)}
	for _, g := range gaps {
		ms, failed = append(ms, millis(g.Gap)), append(failed, float64(g.Failed))
		r.worst, r.slow = max(r.worst, g.Failed), max(r.slow, g.Slow)
	}
	r.median, r.p99, r.failed = quantile(ms, 0.5), quantile(ms, 0.99), int(quantile(failed, 0.5))
	return r
}

// quantile is a quantile by nearest rank; the median of an even number is between two.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); q == 0.5 && n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[max(0, int(math.Ceil(q*float64(len(v))))-1)]
}

// judge tells the table and compares.
func (b *bench) judge() {
	for _, kind := range []how{process, host} {
		rows := map[string]row{}
		best, again := math.Inf(1), 0
		for _, c := range b.list {
			if len(c.gaps[kind]) == 0 {
				continue
			}
			again += c.again[kind]
			r := rowOf(c.name, c.gaps[kind])
			rows[c.name] = r
			if strings.HasPrefix(c.name, "shunt") {
				best = min(best, r.median)
			}
		}
		b.e.Say("death of a %s", kind)
		b.e.Say("%-20s %6s %10s %10s %8s %8s %8s %8s %8s", "", "deaths", "median ms", "p99 ms", "failed", "most", "slow", "repeated", "ratio")
		for _, c := range b.list {
			if r, ok := rows[c.name]; ok {
				b.e.Say("%-20s %6d %10.1f %10.1f %8d %8d %8d %8d %8s", r.name, r.n, r.median, r.p99, r.failed, r.worst, r.slow, c.again[kind], b.ratio(kind, r, best))
			}
		}
		b.e.Count(fmt.Sprintf("%s.repeated", kind), again)
		b.compare(kind, rows)
	}
}

// ratio is a row's median in terms of the best one of shunt's own, if there is any.
func (b *bench) ratio(kind how, r row, best float64) string {
	if math.IsInf(best, 1) {
		return ""
	}
	b.e.Add(fmt.Sprintf("%s.%s.ratio", kind, r.name), "ratio", r.median/best)
	return fmt.Sprintf("%.2f", r.median/best)
}

// compare holds shunt to its bounds where both sides were measured.
func (b *bench) compare(kind how, rows map[string]row) {
	ratio := func(name, ours string, theirs ...string) (float64, bool) {
		least := math.Inf(1)
		for _, t := range theirs {
			if r, ok := rows[t]; ok {
				least = min(least, r.median)
			}
		}
		our, ok := rows[ours]
		if !ok || math.IsInf(least, 1) {
			return 0, false
		}
		b.e.Add(string(kind)+"."+name, "ratio", our.median/least)
		return our.median / least, true
	}
	switch kind {
	case process:
		ratio("confirm_to_best_proxy", "shunt-confirm", "haproxy-tuned", "nginx-tuned")
		if r, ok := ratio("divert_to_best_proxy", "shunt-divert", "haproxy-tuned", "nginx-tuned"); ok {
			b.e.Want(r <= benchDivert, "divert takes %.2f of the better tuned proxy's gap, bound %.2f", r, benchDivert)
		}
	case host:
		if r, ok := ratio("probes_to_haproxy", "shunt-20ms", "haproxy-tuned"); ok {
			b.e.Want(r <= benchSilent, "probes each 20 ms take %.2f of tuned HAProxy's gap, bound %.2f", r, benchSilent)
		}
	}
}
