package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"
)

// Figures collects the samples of a scenario's figures. It may be used by several
// goroutines at once.
type Figures struct {
	mu sync.Mutex
	by map[string]*samples
}

type samples struct {
	Unit   string    `json:"unit"`
	Values []float64 `json:"values"`
}

// Add notes one sample; a figure keeps the unit of its first one.
func (f *Figures) Add(name, unit string, v float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by = map[string]*samples{}
	}
	s := f.by[name]
	if s == nil {
		s = &samples{Unit: unit}
		f.by[name] = s
	}
	s.Values = append(s.Values, v)
}

// MS notes a duration in milliseconds.
func (f *Figures) MS(name string, d time.Duration) {
	f.Add(name, "ms", float64(d)/float64(time.Millisecond))
}

// Packets notes a number of packets.
func (f *Figures) Packets(name string, n int) { f.Add(name, "packets", float64(n)) }

// Count notes a number of things.
func (f *Figures) Count(name string, n int) { f.Add(name, "count", float64(n)) }

// MiB notes an amount of memory given in bytes.
func (f *Figures) MiB(name string, bytes int64) { f.Add(name, "MiB", float64(bytes)/(1<<20)) }

// Figure is what is reported of the samples of one name.
type Figure struct {
	Unit   string  `json:"unit"`
	Median float64 `json:"median"`
	P99    float64 `json:"p99"` // nearest rank
	Max    float64 `json:"max"`
}

func (s samples) figure() Figure {
	v := slices.Clone(s.Values)
	slices.Sort(v)
	n := len(v)
	if n == 0 {
		return Figure{Unit: s.Unit}
	}
	median := v[n/2]
	if n%2 == 0 {
		median = (v[n/2-1] + v[n/2]) / 2
	}
	rank := int(math.Ceil(0.99*float64(n))) - 1
	return Figure{Unit: s.Unit, Median: round(median), P99: round(v[rank]), Max: round(v[n-1])}
}

func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// Control is what must be seen for a zero elsewhere to mean anything.
type Control struct {
	Value float64 `json:"value"`
	OK    bool    `json:"ok"`
}

// Report is the outcome of a scenario.
type Report struct {
	Scenario string             `json:"scenario"`
	OK       bool               `json:"ok"`
	Runs     int                `json:"runs"`
	Figures  map[string]Figure  `json:"figures"`
	Controls map[string]Control `json:"controls,omitempty"`
	Problems []string           `json:"problems,omitempty"`
}

// outcome is what one run hands to its parent.
type outcome struct {
	Samples  map[string]*samples `json:"samples"`
	Controls map[string]Control  `json:"controls,omitempty"`
	Problems []string            `json:"problems,omitempty"`
}

// merge makes a report of runs. A control holds if it held in every run; its value is the
// least one.
func merge(name string, runs []outcome) Report {
	r := Report{Scenario: name, OK: len(runs) > 0, Runs: len(runs), Figures: map[string]Figure{}}
	all := map[string]*samples{}
	for i, o := range runs {
		for k, s := range o.Samples {
			if all[k] == nil {
				all[k] = &samples{Unit: s.Unit}
			}
			all[k].Values = append(all[k].Values, s.Values...)
		}
		for k, c := range o.Controls {
			if r.Controls == nil {
				r.Controls = map[string]Control{}
			}
			if was, ok := r.Controls[k]; ok {
				c = Control{Value: min(c.Value, was.Value), OK: c.OK && was.OK}
			}
			r.Controls[k] = c
		}
		for _, p := range o.Problems {
			if len(runs) > 1 {
				p = fmt.Sprintf("run %d: %s", i+1, p)
			}
			r.Problems = append(r.Problems, p)
		}
	}
	for k, s := range all {
		r.Figures[k] = s.figure()
	}
	r.OK = r.OK && len(r.Problems) == 0
	return r
}

// JSON writes the report as one JSON object.
func (r Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Text writes the report for people.
func (r Report) Text(w io.Writer) error {
	word := "ok"
	if !r.OK {
		word = "NOT OK"
	}
	if _, err := fmt.Fprintf(w, "%s: %s (%d runs)\n", r.Scenario, word, r.Runs); err != nil {
		return err
	}
	for _, k := range sorted(r.Figures) {
		f := r.Figures[k]
		if _, err := fmt.Fprintf(w, "  %-20s median %10.1f  p99 %10.1f  max %10.1f %s\n", k, f.Median, f.P99, f.Max, f.Unit); err != nil {
			return err
		}
	}
	for _, k := range sorted(r.Controls) {
		c := r.Controls[k]
		seen := "seen"
		if !c.OK {
			seen = "MISSING"
		}
		if _, err := fmt.Fprintf(w, "  control %-20s %s (%g)\n", k, seen, c.Value); err != nil {
			return err
		}
	}
	for _, p := range r.Problems {
		if _, err := fmt.Fprintf(w, "  problem: %s\n", p); err != nil {
			return err
		}
	}
	return nil
}

func sorted[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
