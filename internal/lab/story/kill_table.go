package story

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// killPoints are the kill points of the product, each of which the scenario must have
// killed at. A test compares them with the source.
func killPoints() []string {
	return slices.Sorted(slices.Values(append(modePoints(),
		"count.added",
		"file.prepared",
		"file.renamed",
		"file.written",
		"flows.deleted",
		"generation.adopted",
		"generation.linked",
		"generation.prepared",
		"generation.pruned",
		"generation.swapped",
		"generation.written",
		"intent.removed",
		"intent.written",
		"journal.appended",
		"kv.updated",
		"lane.address",
		"lane.command",
		"lane.installed",
		"lane.mtu",
		"lane.peer-added",
		"lane.peer-moved",
		"lane.replaced",
		"lane.restored",
		"lane.saved",
		"lane.settled",
		"lane.stripped",
		"lane.up",
		"plane.loaded",
		"plane.moved",
		"plane.routes",
		"plane.rules",
		"pool.published",
		"quarantine.appended",
		"quarantine.filled",
	)))
}

// killTable counts kills and what they left: point -> kind of run.
type killTable map[string]map[string]*killCount

type killCount struct{ kills, inconsistent int }

func (t killTable) add(point, kind string, inconsistent bool) {
	if t[point] == nil {
		t[point] = map[string]*killCount{}
	}
	if t[point][kind] == nil {
		t[point][kind] = &killCount{}
	}
	t[point][kind].kills++
	if inconsistent {
		t[point][kind].inconsistent++
	}
}

func (t killTable) killsAt(point string) (n int) {
	for _, c := range t[point] {
		n += c.kills
	}
	return n
}

func (t killTable) kills() (n int) {
	for point := range t {
		n += t.killsAt(point)
	}
	return n
}

func (t killTable) inconsistent() (n int) {
	for _, kinds := range t {
		for _, c := range kinds {
			n += c.inconsistent
		}
	}
	return n
}

// lines are the table for people.
func (t killTable) lines() []string {
	out := []string{fmt.Sprintf("%-22s %-34s %5s %12s", "point", "command", "kills", "inconsistent")}
	for _, point := range slices.Sorted(maps.Keys(t)) {
		for _, kind := range slices.Sorted(maps.Keys(t[point])) {
			c := t[point][kind]
			out = append(out, fmt.Sprintf("%-22s %-34s %5d %12d", point, kind, c.kills, c.inconsistent))
		}
	}
	return out
}

// log is a fresh file for the points of one run.
func (k *killer) log() (string, error) {
	path := filepath.Join(k.w.Dir, "points.log")
	return path, os.WriteFile(path, nil, 0o600)
}

// read counts the points of a log.
func (k *killer) read(log string) map[string]int {
	b, _ := os.ReadFile(log)
	out := map[string]int{}
	for _, name := range strings.Fields(string(b)) {
		out[name]++
	}
	return out
}

// reached are the names of all points that any kind of run gets to.
func (k *killer) reached() []string {
	names := map[string]bool{}
	for _, points := range k.points {
		for name := range points {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// spot is the n-th time that a kind of run gets to a point.
type spot struct {
	kind killKind
	n    int
}

// spots are where to kill at a point, in the order of trying: each kind once before any
// twice, beginning with another kind for each point; first the first time that the run gets
// there, then the last, then one between. Slow kinds come last.
func (k *killer) spots(point string) []spot {
	k.turn++
	kinds := slices.Clone(k.kinds)
	first := k.turn % len(kinds)
	kinds = append(kinds[first:], kinds[:first]...)
	slices.SortStableFunc(kinds, func(a, b killKind) int { return cmp.Compare(slowness(a), slowness(b)) })
	kinds = slices.DeleteFunc(kinds, func(kind killKind) bool { return k.points[kind.name][point] == 0 })
	var out []spot
	for i := range k.e.Int("each") * killAgain {
		for j, kind := range kinds {
			most := k.points[kind.name][point]
			n := [...]int{1, most, (most + 1) / 2, 1 + k.rng.IntN(most)}[min(i+j%2, 3)]
			out = append(out, spot{kind, n})
		}
	}
	return out
}

func slowness(k killKind) int {
	if k.slow {
		return 1
	}
	return 0
}
