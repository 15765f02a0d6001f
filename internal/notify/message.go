package notify

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shunt-net/shunt/internal/edge"
)

// message is an alert as it is sent.
type message struct {
	edge.Alert
	Muted   int `json:"muted,omitempty"`   // alerts of the same kind about the same object that min_gap held back before it
	Dropped int `json:"dropped,omitempty"` // alerts that the queue had no room for before it
}

// encode gives the message as one line of JSON.
func (m message) encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("alert %s: %w", m.Kind, err)
	}
	return append(b, '\n'), nil
}

// text gives the message for people.
func (m message) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "shunt: %s: %s", m.Level, m.Kind)
	if m.Object != "" {
		fmt.Fprintf(&b, " %s", m.Object)
	}
	fmt.Fprintf(&b, ": %s", m.Text)
	for i, name := range slices.Sorted(maps.Keys(m.Figures)) {
		sep := ", "
		if i == 0 {
			sep = "\n"
		}
		fmt.Fprintf(&b, "%s%s %s", sep, name, strconv.FormatFloat(m.Figures[name], 'f', -1, 64))
	}
	if m.Muted > 0 {
		fmt.Fprintf(&b, "\nheld back before this one: %d of the same kind", m.Muted)
	}
	if m.Dropped > 0 {
		fmt.Fprintf(&b, "\nlost before this one: %d, too many at once", m.Dropped)
	}
	return b.String()
}
