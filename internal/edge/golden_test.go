package edge

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files")

// recorded are inputs as `--record-input` saves them.
func recorded() map[string]func() Input {
	return map[string]func() Input{
		"incumbent-dead": func() Input {
			s := atRest(testConfig(2, 3))
			s.later(12 * time.Second)
			s.dies(1)
			s.good(2)
			return s.Input
		},
		"all-dead-one-back": func() Input {
			s := atRest(testConfig(2, 1))
			s.dies(1, 2)
			s.run()
			s.later(10 * time.Second)
			s.answer(s.key(1), Miss)
			s.good(2)
			return s.Input
		},
		"drain": func() Input {
			s := atRest(testConfig(2, 3))
			s.Command, s.Only = CommandDrain, []string{"front"}
			s.Ask = Ask{Candidate: "proxy-01", Owner: "ada", Reason: "new jar", For: 30 * time.Minute, At: s.Now}
			return s.Input
		},
		"replica-behind": func() Input {
			s := atRest(testConfig(2, 3))
			s.leads(proxy(2), 4, "core-02", "core-02")
			s.Views[2] = View{Replica: "core-03", Error: "no answer within 2s"}
			return s.Input
		},
		"nodes-scale-up": func() Input {
			c := testConfig(2, 3)
			c.Services[0].Nodes = true
			s := atRest(c)
			s.Config.Services[0].Candidates = append(s.Config.Services[0].Candidates, Candidate{
				Name: "proxy-03", Node: "core-03", Addresses: []netip.Addr{proxy(3).Addr()}, Port: 25577, Weight: 1,
			})
			s.good(3)
			return s.Input
		},
		"not-the-writer": func() Input {
			s := atRest(testConfig(2, 3))
			s.as(2)
			s.run()
			s.dies(1)
			return s.Input
		},
		"parity-split": func() Input {
			s := atRest(testConfig(2, 1))
			s.Config.Parity = []ParityGroup{{Name: "forwarding-secret", Every: time.Minute, Members: []ParityMember{{Name: "store"}, {Name: "proxy-01"}, {Name: "proxy-02"}}}}
			s.Parity = map[string]Parity{"forwarding-secret": {
				At: s.Now / 1000, Hashes: map[string]string{"store": "1f2e3d4c5b6a", "proxy-01": "1f2e3d4c5b6a", "proxy-02": "9d8c7b6a5f4e"},
			}}
			return s.Input
		},
	}
}

// Recorded inputs are the bug-report format: each plans to the text beside it, for good.
func TestGoldenInputs(t *testing.T) {
	for name, make := range recorded() {
		t.Run(name, func(t *testing.T) {
			file, golden := filepath.Join("testdata", name+".json"), filepath.Join("testdata", name+".plan")
			if *update {
				write(t, file, asJSON(t, make())+"\n")
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var in Input
			if err := json.Unmarshal(b, &in); err != nil {
				t.Fatal(err)
			}
			p, err := ReplayInput(in)
			if err != nil {
				t.Fatal(err)
			}
			got := planText(p)
			if *update {
				write(t, golden, got)
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			same(t, name, string(want), got)
			invariants(t, in, p)
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsNoInputIsRefused(t *testing.T) {
	for name, in := range map[string]Input{
		"another version": {Version: InputVersion + 1, Command: CommandRetarget},
		"no command":      {Version: InputVersion},
		"egress":          {Version: InputVersion, Command: "repair"},
		"a drain of what is not there": {
			Version: InputVersion, Command: CommandDrain, Config: testConfig(1, 0), Ask: Ask{Candidate: "proxy-09"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := ReplayInput(in); err == nil {
				t.Errorf("planned:\n%s", planText(p))
			}
		})
	}
}

// A recorded input comes from anywhere: whatever it says, planning neither panics nor
// runs on, and plans the same twice.
func FuzzReplayInput(f *testing.F) {
	for _, in := range recorded() {
		b, err := json.Marshal(in())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"version":1,"command":"drain","config":{"services":[{"name":"a","candidates":[{}]}]},"ask":{"candidate":"x"}}`))
	f.Add([]byte(`{"version":1,"command":"retarget","node":"a","config":{"replicas":[{"name":"a"}],"services":[{"name":"a","vip":["::1"],"candidates":[{"addresses":["::2"]}]}]},"views":[{"replica":"b"},{"replica":"a","local":true}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var in Input
		if json.Unmarshal(b, &in) != nil {
			return
		}
		p, err := ReplayInput(in)
		if err != nil {
			return
		}
		p.Text(io.Discard)
		again, _ := ReplayInput(in)
		x, _ := json.Marshal(p)
		y, _ := json.Marshal(again)
		if !bytes.Equal(x, y) {
			t.Fatalf("two plans of one input:\n%s\n%s", x, y)
		}
	})
}
