package egress

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/state"
)

var update = flag.Bool("update", false, "write the golden files")

// Recorded inputs are the bug-report format: each plans to the text beside it, for good.
func TestGoldenInputs(t *testing.T) {
	inputs := map[string]func() Input{
		"repair-dead-lane": func() Input {
			in := healthy("repair")
			in.silence(1, 2)
			in.prove(false, 6)
			in.prove(true, 7, 8, 9)
			in.swapped(2, 7, true)
			return in
		},
		"repair-uplink-down": func() Input {
			in := healthy("repair")
			in.silence(1, 1, 2, 3, 4, 5)
			in.Uplink = &UplinkView{Interface: "wan0", Targets: map[string]bool{"203.0.113.53": false}}
			return in
		},
		"rebalance-quarantined": func() Input {
			in := healthy("rebalance")
			in.carries(2, 6)
			in.Quarantine = []state.Quarantined{quarantined(2, at("09:00:00"), "egress2")}
			return in
		},
		"refresh-small-list": func() Input {
			in := healthy("refresh")
			in.Listing = listing(9)
			in.Memory.LastSize = 284
			return in
		},
		"refresh-published": func() Input {
			in := healthy("refresh")
			in.Listing = listing(9).results(7)
			in.Listing.Began = noon.Add(-time.Minute)
			return in
		},
	}
	for name, make := range inputs {
		t.Run(name, func(t *testing.T) {
			file, golden := filepath.Join("testdata", name+".json"), filepath.Join("testdata", name+".plan")
			if *update {
				b, err := json.MarshalIndent(make(), "", " ")
				if err != nil {
					t.Fatal(err)
				}
				write(t, file, append(b, '\n'))
			}
			var in Input
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(b, &in); err != nil {
				t.Fatal(err)
			}
			p, err := Replan(in)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			p.Text(&got)
			if *update {
				write(t, golden, got.Bytes())
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Errorf("plan (-want +got):\n%s", d)
			}
		})
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}
