package egress

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// A recorded input comes from anywhere: whatever it says, planning neither panics nor
// runs on, and plans the same twice.
func FuzzReplan(f *testing.F) {
	seeds, err := filepath.Glob("testdata/*.json")
	if err != nil || len(seeds) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, s := range seeds {
		b, err := os.ReadFile(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"version":1,"command":"repair","lanes":[{"name":"a"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var in Input
		if json.Unmarshal(b, &in) != nil {
			return
		}
		p, err := Replan(in)
		if err != nil {
			return
		}
		p.Text(io.Discard)
		again, _ := Replan(in)
		x, _ := json.Marshal(p)
		y, _ := json.Marshal(again)
		if !bytes.Equal(x, y) {
			t.Fatalf("two plans of one input:\n%s\n%s", x, y)
		}
	})
}
