package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/egress"
)

func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrecedence(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "shunt.yaml"), lines("egress:", "  repair:", "    threshold: 3", "    rise: 3", "    limit: 3"))
	c, cs, err := Load(Options{
		Path: file,
		Env:  []string{"SHUNT_EGRESS_REPAIR_RISE=4", "SHUNT_EGRESS_REPAIR_LIMIT=4", "SHUNT_EGRESS_REPAIR_SWAP_LIMIT=", "SHUNT_EGRESS_PLANE_MARK_MASK=0xff"},
		Set:  []string{"egress.repair.limit=5", "Egress.Repair.Hold_Min=1m", "egress.pool.dir="},
	})
	if err != nil || len(Blocking(cs, SectionEgress)) > 0 {
		t.Fatal(err, said(cs))
	}
	got := c.Egress.Repair
	want := Default().Egress.Repair
	want.Threshold, want.Rise, want.Limit, want.HoldMin = 3, 4, 5, time.Minute
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c.Egress.Plane.MarkMask != 0xff {
		t.Errorf("mark_mask %s", c.Egress.Plane.MarkMask)
	}
}

func TestEveryScalarKeyCanBeSet(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "shunt.yaml"), "")
	for _, k := range Keys() {
		if k.Env == "" {
			continue
		}
		text := k.Default
		if text == "" {
			text = "x"
		}
		for _, o := range []Options{{Path: file, Set: []string{k.Path + "=" + text}}, {Path: file, Env: []string{k.Env + "=" + text}}} {
			_, cs, err := Load(o)
			for _, c := range cs {
				if strings.Contains(c.Msg, "no such key") || strings.Contains(c.Msg, "known key") {
					t.Errorf("%v: %s", o, c)
				}
			}
			if err != nil {
				t.Errorf("%v: %v", o, err)
			}
		}
	}
}

func TestFaultsOfFlagsAndVariables(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "shunt.yaml"), "egress: {lanes: [{name: a, interface: vpn1, table: 1, mark: 1}]}")
	tests := []struct {
		name string
		o    Options
		want string
	}{
		{"a value of the wrong type", Options{Set: []string{"egress.repair.threshold=many"}}, `--set egress.repair.threshold: "many" is not a whole number | write digits only, such as 3`},
		{"a bad value", Options{Env: []string{"SHUNT_EGRESS_REPAIR_THRESHOLD=0"}}, `$SHUNT_EGRESS_REPAIR_THRESHOLD: egress.repair.threshold: 0 is out of range | write 1 to 1000`},
		{"the flag is blamed, not the variable it hides", Options{Env: []string{"SHUNT_LOG_LEVEL=loud"}, Set: []string{"log.level=quiet"}}, `--set log.level: "quiet" is not a known word | known: debug, info, warn, error`},
		{"an unknown key", Options{Set: []string{"egress.repair.treshold=3"}}, `--set egress.repair.treshold: no such key | did you mean "egress.repair.threshold"?`},
		{"no value", Options{Set: []string{"egress.repair.threshold"}}, `--set egress.repair.threshold: has no value | write --set KEY=VALUE, such as --set egress.repair.threshold=3`},
		{"a list", Options{Set: []string{"egress.check.targets=1.1.1.1"}}, `--set egress.check.targets: only the file can set a list | write egress.check.targets in the configuration file`},
		{"a list by variable", Options{Env: []string{"SHUNT_EGRESS_LANES=x"}}, `$SHUNT_EGRESS_LANES: egress.lanes: only the file can set a list | write egress.lanes in the configuration file`},
		{"a mapping", Options{Set: []string{"egress.repair=3"}}, `--set egress.repair: only the file can set a mapping | write egress.repair in the configuration file`},
		{"an unknown variable is a warning", Options{Env: []string{"SHUNT_EGRESS_REPAIR_TRESHOLD=3"}}, `warning: $SHUNT_EGRESS_REPAIR_TRESHOLD: sets no known key | did you mean SHUNT_EGRESS_REPAIR_THRESHOLD?`},
		{"variables of others", Options{Env: []string{"SHUNT_KILL_AT=x", "SHUNT_OUT=x", "SHUNT_LAB_X=y", "PATH=z", "SHUNTX=1"}}, ""},
		{"a relative state folder", Options{StateDir: "here"}, `--state-dir: state_dir: "here" is not an absolute path | write it such as /var/lib/shunt`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.o.Path = file
			_, cs, err := Load(tt.o)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range cs {
				s := c.String()
				if c.Warning {
					s = "warning: " + s
				}
				if c.Hint != "" {
					s += " | " + c.Hint
				}
				got = append(got, s)
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhichFile(t *testing.T) {
	for name, tt := range map[string]struct {
		o    Options
		want string
	}{
		"flag":     {Options{Path: "/a", Env: []string{"SHUNT_CONFIG=/b"}}, "/a"},
		"variable": {Options{Env: []string{"SHUNT_CONFIG=/b"}}, "/b"},
		"neither":  {Options{Env: []string{"SHUNT_CONFIG="}}, DefaultPath},
	} {
		if got := File(tt.o); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestRefusedFiles(t *testing.T) {
	dir := t.TempDir()
	open := write(t, filepath.Join(dir, "open.yaml"), "state_dir: /elsewhere\n")
	if err := os.Chmod(open, 0o646); err != nil {
		t.Fatal(err)
	}
	big := write(t, filepath.Join(dir, "big.yaml"), strings.Repeat("#\n", maxBytes/2+1))
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ path, want string }{
		"a pipe nobody writes to": {pipe, "is not a regular file"},
		"anybody may write":       {open, "anybody may write to it, and shunt would run what it says"},
		"a folder":                {dir, "is not a regular file"},
		"endless":                 {big, "is larger than 8388608 bytes"},
	} {
		c, cs, err := Load(Options{Path: tt.path})
		if err != nil || len(cs) != 1 || cs[0].Msg != tt.want || len(Blocking(cs)) != 1 {
			t.Errorf("%s: %v %v", name, cs, err)
		}
		if c.StateDir != Default().StateDir {
			t.Errorf("%s: the file was believed", name)
		}
	}
	_, _, err := Load(Options{Path: filepath.Join(dir, "none.yaml")})
	if !Missing(err) {
		t.Errorf("a missing file: %v", err)
	}
	shared := write(t, filepath.Join(dir, "shared.yaml"), "log: {level: debug}\n")
	if err := os.Chmod(shared, 0o664); err != nil {
		t.Fatal(err)
	}
	if c, cs, err := Load(Options{Path: shared}); err != nil || len(Blocking(cs)) > 0 || c.Log.Level != LevelDebug {
		t.Errorf("group and others may read: %v %v", cs, err)
	}
}

func TestTheLastGoodCopy(t *testing.T) {
	dir := t.TempDir()
	good := lines("state_dir: "+dir, "egress: {repair: {threshold: 7}}")
	copyPath := write(t, filepath.Join(dir, "last-good/shunt.yaml"), good)
	tests := []struct {
		name string
		file string // "-" = none
		o    Options
		used bool
	}{
		{"a file that passes is used", lines("state_dir: "+dir, "egress: {repair: {threshold: 3}}"), Options{}, false},
		{"a bad value", lines("state_dir: "+dir, "egress: {repair: {threshold: 0}}"), Options{}, true},
		{"not even YAML", lines("state_dir: "+dir, "egress: {{"), Options{}, true},
		{"no file, the folder said by a flag", "-", Options{StateDir: dir}, true},
		{"a fault of a section that is not needed", lines("state_dir: "+dir, "egress: {repair: {threshold: 0}}"), Options{Sections: []string{}}, false},
		{"a wrong flag is not healed", lines("state_dir: " + dir), Options{Set: []string{"egress.repair.threshold=0"}}, false},
		{"not allowed", lines("state_dir: "+dir, "egress: {{"), Options{LastGood: "-"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := tt.o
			o.Path = filepath.Join(t.TempDir(), "shunt.yaml")
			if tt.file != "-" {
				write(t, o.Path, tt.file)
			}
			switch o.LastGood {
			case "":
				o.LastGood = "last-good/shunt.yaml"
			case "-":
				o.LastGood = ""
			}
			if o.Sections == nil {
				o.Sections = []string{SectionEgress}
			}
			c, cs, err := Load(o)
			if c.From.LastGood != tt.used {
				t.Fatalf("last good used: %v, want %v (%v)\n%s", c.From.LastGood, tt.used, err, said(cs))
			}
			if !tt.used {
				return
			}
			if err != nil || c.Egress.Repair.Threshold != 7 || string(c.From.Raw) != good || c.From.File != copyPath {
				t.Errorf("%v %+v", err, c.From)
			}
			if len(cs) < 2 || !strings.HasPrefix(cs[0].Msg, "DOES NOT PASS") || len(Blocking(cs, SectionEgress)) > 0 {
				t.Errorf("want a loud warning first and the reason behind it:\n%s", said(cs))
			}
		})
	}
}

func TestABrokenCopyHelpsNobody(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "last-good/shunt.yaml"), "egress: {{")
	file := write(t, filepath.Join(dir, "shunt.yaml"), lines("state_dir: "+dir, "log: {level: loud}"))
	c, cs, _ := Load(Options{Path: file, LastGood: "last-good/shunt.yaml"})
	if c.From.LastGood || len(Blocking(cs)) != 1 {
		t.Errorf("%+v\n%s", c.From, said(cs))
	}
}

func TestEachFileAndSectionHasItsOwnCopy(t *testing.T) {
	for section, want := range map[string]string{SectionEgress: "last-good/etc-shunt-shunt.yaml", SectionEdge: "last-good/edge@etc-shunt-shunt.yaml"} {
		if got := LastGoodName("/etc/shunt/shunt.yaml", section); got != want {
			t.Error(got)
		}
	}
}

func TestShowHidesSecrets(t *testing.T) {
	c := sound()
	c.Egress.Sources = append(c.Egress.Sources, egress.Source{
		Name: "hmn", Type: egress.SourceArchive, URL: "https://me:hunter2@provider.example/a.zip?code=hunter2#hunter2",
	}, egress.Source{
		Name: "cmd", Type: egress.SourceExec, Command: []string{"curl", "--url=https://me:hunter2@a/b?c=hunter2", "http://%zz:hunter2@a"},
	})
	c.Hooks.OnEvent = []string{"post", "https://a/?token=hunter2"}
	own := relays() // the key and a header where their files should be named
	own.Name, own.KeyFile, own.HeadersFile = "relays", "aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMmh1bnQ=", "X-Key: aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMmh1bnQ="
	c.Egress.Sources = append(c.Egress.Sources, own)
	shown, err := Show(c)
	for _, secret := range []string{"hunter2", "aHVudGVyMm"} {
		if err != nil || strings.Contains(string(shown), secret) || strings.Contains(fmt.Sprint(Tree(c)), secret) {
			t.Errorf("%v\n%s", err, shown)
		}
	}
	if !strings.Contains(string(shown), "https://hidden@provider.example/a.zip?hidden\n") {
		t.Errorf("the rest of the address is to be seen:\n%s", shown)
	}
}

// Whatever passes is shown as a file that loads to the same configuration.
func TestShowLoadsAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := sound()
		e := &c.Egress
		d := rapid.Custom(func(t *rapid.T) time.Duration { return time.Duration(rapid.Int64Range(1, 1<<55).Draw(t, "ns")) })
		word := rapid.StringMatching(`/?[ -~]{0,20}`)
		c.StateDir = "/" + word.Draw(t, "state_dir")
		c.Hooks = Hooks{OnEvent: rapid.SliceOf(word).Draw(t, "argv"), Timeout: d.Draw(t, "timeout")}
		e.Repair.HoldMin, e.Repair.HoldMax = d.Draw(t, "min"), 1<<55
		e.Repair.Readd = d.Draw(t, "readd")
		e.Pool.MinRatio = rapid.Float64Range(0, 1).Draw(t, "ratio")
		e.Pool.Working = word.Draw(t, "working")
		e.Plane.LeakGuard = rapid.Bool().Draw(t, "leak_guard")
		s := relays()
		s.Name, s.Port, s.KeyFile = "relays", rapid.IntRange(0, 65535).Draw(t, "port"), "/"+word.Draw(t, "key_file")
		s.Countries, s.Cities = rapid.SliceOf(word).Draw(t, "countries"), rapid.SliceOf(word).Draw(t, "cities")
		s.Ownership = rapid.SampledFrom([]egress.Ownership{"", egress.OwnershipAny, egress.OwnershipOwned, egress.OwnershipRented}).Draw(t, "ownership")
		e.Sources = append(e.Sources, s)
		e.Lanes[0].DSCP = []egress.DSCP{egress.DSCP(rapid.IntRange(0, 39).Draw(t, "dscp"))}
		e.Lanes[0].Name = rapid.StringMatching(`[a-z0-9]{1,8}`).Draw(t, "name")
		e.Lanes[1].Mark = egress.Mark(rapid.Uint32Range(1, 0xfff).Draw(t, "mark"))
		if len(Blocking(Check(c), SectionEgress)) > 0 || strings.Contains(fmt.Sprint(c.StateDir, c.Hooks, e.Pool.Working, s), "://") {
			return // Show is of what passed; a secret is not to come back
		}
		shown, err := Show(c)
		if err != nil {
			t.Fatal(err)
		}
		r := parse("shown", shown)
		r.check()
		if len(r.complaints) > 0 {
			t.Fatalf("%s\n%s", said(r.complaints), shown)
		}
		if diff := cmp.Diff(c, r.cfg, same()); diff != "" {
			t.Fatalf("(-want +got):\n%s\n%s", diff, shown)
		}
	})
}
