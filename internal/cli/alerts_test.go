package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/journal"
)

// What the egress side does is an alert where it changes the mode, and nowhere else.
func TestChangesOfModeAreAlerts(t *testing.T) {
	at := time.Date(2026, 12, 1, 4, 20, 0, 0, time.UTC)
	tests := map[string]struct {
		ev   journal.Event
		want []edge.Alert
	}{
		"into trouble": {
			journal.Event{Kind: "mode", From: "normal", To: "degraded", Reason: "3 attempts failed"},
			[]edge.Alert{{Kind: "mode", Object: "egress", Level: "warning", Text: "egress normal -> degraded: 3 attempts failed", At: at}},
		},
		"out of it": {
			journal.Event{Kind: "mode", From: "degraded", To: "normal", Reason: "a refresh is good"},
			[]edge.Alert{{Kind: "mode", Object: "egress", Level: "info", Text: "egress degraded -> normal: a refresh is good", At: at}},
		},
		"a lane is lent": {journal.Event{Kind: "lend", Object: "vpn1"}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			told := filepath.Join(t.TempDir(), "told")
			a := newApp(nil, io.Discard, io.Discard, []string{"PATH=" + os.Getenv("PATH")}, func() time.Time { return at })
			c := config.Default()
			c.Alerts.Targets = []edge.AlertTarget{{
				Name: "file", Type: edge.AlertCommand, Command: []string{"sh", "-c", `cat >>"$1"`, "sh", told},
				Timeout: 10 * time.Second, Level: edge.LevelInfo,
			}}
			l := a.startAlerts(c)
			l.mode(tt.ev, at)
			l.close(t.Context())
			raw, err := os.ReadFile(told)
			if err != nil && tt.want != nil {
				t.Fatal(err)
			}
			var got []edge.Alert
			for dec := json.NewDecoder(bytes.NewReader(raw)); dec.More(); {
				var al edge.Alert
				if err := dec.Decode(&al); err != nil {
					t.Fatal(err)
				}
				got = append(got, al)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
