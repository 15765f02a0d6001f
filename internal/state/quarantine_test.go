package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const (
	header = "endpoint\tfailed_at_epoch\tfailed_at_iso\tslot\tiface\treason\told_pool_mtime_epoch\treplacement_endpoint\n"
	rowA   = "192.121.163.235:42530\t1767236400\t2026-01-01T03:00:00Z\tegress2\tvpn2\tchoked\t1767225600\t198.51.100.7:51820\n"
	rowB   = "[2001:db8::1]:51820\t1767240000\t2026-01-01T04:00:00Z\tegress1\tvpn1\tno answer to 5 pings\t0\t\n"
)

func quarantinedA() Quarantined {
	return Quarantined{
		Endpoint: "192.121.163.235:42530", FailedAt: at(1767236400), Slot: "egress2", Iface: "vpn2", Reason: "choked",
		PoolMtime: at(1767225600), Replacement: "198.51.100.7:51820",
	}
}

func quarantinedB() Quarantined {
	return Quarantined{
		Endpoint: "[2001:db8::1]:51820", FailedAt: at(1767240000), Slot: "egress1", Iface: "vpn1", Reason: "no answer to 5 pings",
	}
}

func quarantinedC() Quarantined {
	return Quarantined{Endpoint: "203.0.113.9:443", FailedAt: at(1767250000), Slot: "egress3", Iface: "vpn3", Reason: "mtu"}
}

func TestQuarantineFileIsTheContract(t *testing.T) {
	d := open(t, t.TempDir())
	a := quarantinedA()
	a.Replacement = ""
	a.FailedAt = a.FailedAt.Add(999 * time.Millisecond).In(time.FixedZone("MSK", 3*3600))
	must(t, d.AppendQuarantine(t.Context(), a))
	must(t, d.AppendQuarantine(t.Context(), quarantinedB()))
	must(t, d.FillReplacement(t.Context(), a.Endpoint, a.FailedAt, "198.51.100.7:51820"))

	if diff := cmp.Diff(header+rowA+rowB, read(t, d.Path("quarantine.tsv"))); diff != "" {
		t.Errorf("quarantine.tsv (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(header+rowA+rowB, read(t, d.Path("last-good", "quarantine.tsv"))); diff != "" {
		t.Errorf("last good copy (-want +got):\n%s", diff)
	}
	rows, err := d.Quarantine()
	must(t, err)
	if diff := cmp.Diff([]Quarantined{quarantinedA(), quarantinedB()}, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	noStrays(t, d.Path())
}

func TestAppendQuarantineTwiceIsOneEvent(t *testing.T) {
	d := open(t, t.TempDir())
	a := quarantinedA()
	must(t, d.AppendQuarantine(t.Context(), a))
	again := a
	again.Replacement = ""
	must(t, d.AppendQuarantine(t.Context(), again))
	later := a
	later.FailedAt = a.FailedAt.Add(time.Second)
	must(t, d.AppendQuarantine(t.Context(), later))
	rows, err := d.Quarantine()
	must(t, err)
	if diff := cmp.Diff([]Quarantined{a, later}, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

func TestAppendQuarantineRefusesWhatWouldBreakTheFile(t *testing.T) {
	d := open(t, t.TempDir())
	must(t, d.AppendQuarantine(t.Context(), quarantinedA()))
	before := read(t, d.Path("quarantine.tsv"))
	for name, change := range map[string]func(*Quarantined){
		"no endpoint":               func(q *Quarantined) { q.Endpoint = "" },
		"endpoint without a port":   func(q *Quarantined) { q.Endpoint = "192.0.2.1" },
		"endpoint with a tab":       func(q *Quarantined) { q.Endpoint = "192.0.2.1\t:5" },
		"port 0":                    func(q *Quarantined) { q.Endpoint = "192.0.2.1:0" },
		"slot with a newline":       func(q *Quarantined) { q.Slot = "a\nb" },
		"interface with NUL":        func(q *Quarantined) { q.Iface = "vpn\x00" },
		"replacement with a return": func(q *Quarantined) { q.Replacement = "192.0.2.1:5\r" },
		"no time":                   func(q *Quarantined) { q.FailedAt = time.Time{} },
		"time before 1970":          func(q *Quarantined) { q.FailedAt = at(-5) },
		"time beyond reason":        func(q *Quarantined) { q.FailedAt = at(maxNumber + 1) },
	} {
		q := quarantinedB()
		change(&q)
		if err := d.AppendQuarantine(t.Context(), q); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := d.FillReplacement(t.Context(), "192.0.2.77:1", at(5), "192.0.2.1:1"); err == nil {
		t.Error("a row that does not exist was completed")
	}
	if diff := cmp.Diff(before, read(t, d.Path("quarantine.tsv"))); diff != "" {
		t.Errorf("quarantine.tsv changed (-want +got):\n%s", diff)
	}
	q := quarantinedB()
	q.Reason = " two\twords\nand\x00more "
	must(t, d.AppendQuarantine(t.Context(), q))
	rows, err := d.Quarantine()
	must(t, err)
	if got := rows[1].Reason; got != "two words and more" {
		t.Errorf("reason %q", got)
	}
}

// damageCase is one kind of damage to a quarantine.tsv that holds rows A and B.
type damageCase struct {
	text   string
	remove bool
	line   int
	msg    string
	rows   []Quarantined // certain rows of the file itself
}

func damageCases() map[string]damageCase {
	a, b := quarantinedA(), quarantinedB()
	cutA := a
	cutA.Replacement = ""
	return map[string]damageCase{
		"truncated in the middle of a row": {header + rowA + rowB[:30], false, 3, "truncated line", []Quarantined{a}},
		"truncated in the last column":     {header + rowB + rowA[:len(rowA)-4], false, 3, "truncated line", []Quarantined{b, cutA}},
		"truncated header":                 {header[:20], false, 1, "truncated line", nil},
		"CRLF everywhere":                  {strings.ReplaceAll(header+rowA+rowB, "\n", "\r\n"), false, 1, "CRLF", []Quarantined{a, b}},
		"CRLF in one line":                 {header + rowA + strings.TrimSuffix(rowB, "\n") + "\r\n", false, 3, "CRLF", []Quarantined{a, b}},
		"byte order mark":                  {"\xef\xbb\xbf" + header + rowA + rowB, false, 1, "byte order mark", []Quarantined{a, b}},
		"a field too many":                 {header + strings.TrimSuffix(rowA, "\n") + "\tx\n" + rowB, false, 2, "too many", []Quarantined{b}},
		"a field too few":                  {header + rowA + strings.TrimSuffix(rowB, "\t\n") + "\n", false, 3, "too few", []Quarantined{a}},
		"an empty line":                    {header + rowA + "\n" + rowB, false, 3, "too few", []Quarantined{a, b}},
		"bad epoch":                        {header + strings.Replace(rowA, "1767236400", "yesterday", 1) + rowB, false, 2, "bad number", []Quarantined{b}},
		"negative epoch":                   {header + strings.Replace(rowA, "1767236400", "-1", 1) + rowB, false, 2, "bad number", []Quarantined{b}},
		"huge epoch":                       {header + strings.Replace(rowA, "1767236400", "99999999999999999999", 1) + rowB, false, 2, "bad number", []Quarantined{b}},
		"bad pool mtime":                   {header + strings.Replace(rowA, "1767225600", "1.5e9", 1) + rowB, false, 2, "bad number", []Quarantined{b}},
		"two times that differ":            {header + strings.Replace(rowA, "T03:", "T04:", 1) + rowB, false, 2, "not the same time", []Quarantined{b}},
		"endpoint without a port":          {header + strings.Replace(rowA, ":42530", "", 1) + rowB, false, 2, "host:port", []Quarantined{b}},
		"empty file":                       {"", false, 1, "empty file", nil},
		"missing file":                     {"", true, 0, "missing", nil},
		"NUL bytes at the end":             {header + rowA + strings.Repeat("\x00", 512), false, 3, "control character", []Quarantined{a}},
		"nothing but NUL bytes":            {strings.Repeat("\x00", 4096), false, 1, "control character", nil},
		"no header":                        {rowA + rowB, false, 1, "no header", []Quarantined{a, b}},
		"other columns":                    {"endpoint\tslot\n" + rowA, false, 1, "other columns", nil},
		"HTML":                             {"<html>\n", false, 1, "too few", nil},
	}
}

func TestDamagedQuarantine(t *testing.T) {
	for name, tt := range damageCases() {
		t.Run(name, func(t *testing.T) {
			d := open(t, t.TempDir())
			must(t, d.AppendQuarantine(t.Context(), quarantinedA()))
			must(t, d.AppendQuarantine(t.Context(), quarantinedB()))
			path, good := d.Path("quarantine.tsv"), d.Path("last-good", "quarantine.tsv")
			if tt.remove {
				must(t, os.Remove(path))
			} else {
				write(t, path, tt.text)
			}

			rows, err := d.Quarantine()
			wantDamage(t, err, path, tt.line, tt.msg)
			if rows != nil {
				t.Errorf("rows of a damaged file: %v", rows)
			}
			var e *DamageError
			if errors.As(err, &e) && !strings.Contains(e.Hint, good) {
				t.Errorf("hint %q does not name the last good copy", e.Hint)
			}
			if !tt.remove {
				certain, _ := ParseQuarantine(path, strings.NewReader(tt.text))
				if diff := cmp.Diff(tt.rows, certain); diff != "" {
					t.Errorf("certain rows (-want +got):\n%s", diff)
				}
			}
			union, damage := d.QuarantineUnion()
			if diff := cmp.Diff([]Quarantined{quarantinedA(), quarantinedB()}, union); diff != "" || len(damage) == 0 {
				t.Errorf("union with %d complaints (-want +got):\n%s", len(damage), diff)
			}
			if diff := cmp.Diff(header+rowA+rowB, read(t, good)); diff != "" {
				t.Errorf("reading changed the last good copy (-want +got):\n%s", diff)
			}

			must(t, d.AppendQuarantine(t.Context(), quarantinedC()))
			rows, err = d.Quarantine()
			must(t, err)
			if diff := cmp.Diff([]Quarantined{quarantinedA(), quarantinedB(), quarantinedC()}, rows); diff != "" {
				t.Errorf("rows after an append (-want +got):\n%s", diff)
			}
			wantAside(t, path, tt.text)
			noStrays(t, d.Path())
		})
	}
}

// wantAside checks that the damaged content, if any, was kept once.
func wantAside(t *testing.T, path, text string) {
	t.Helper()
	kept, err := filepath.Glob(path + ".damaged-*")
	must(t, err)
	var want, got []string
	if text != "" {
		want = append(want, text)
	}
	for _, p := range kept {
		got = append(got, read(t, p))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept aside (-want +got):\n%s", diff)
	}
}

func TestRowsOfTheDamagedFileThatTheCopyLacksSurvive(t *testing.T) {
	d := open(t, t.TempDir())
	must(t, d.AppendQuarantine(t.Context(), quarantinedA()))
	path := d.Path("quarantine.tsv")
	// By hand: a row more, and then a line that is none.
	write(t, path, header+rowA+rowB+"garbage\n")
	must(t, d.AppendQuarantine(t.Context(), quarantinedC()))
	rows, err := d.Quarantine()
	must(t, err)
	if diff := cmp.Diff([]Quarantined{quarantinedA(), quarantinedB(), quarantinedC()}, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

func TestBothCopiesDamaged(t *testing.T) {
	d := open(t, t.TempDir())
	must(t, d.AppendQuarantine(t.Context(), quarantinedA()))
	path, good := d.Path("quarantine.tsv"), d.Path("last-good", "quarantine.tsv")
	write(t, path, header+rowB+"x\n")
	write(t, good, header+rowA+"y\n")
	must(t, d.AppendQuarantine(t.Context(), quarantinedC()))
	rows, err := d.Quarantine()
	must(t, err)
	if diff := cmp.Diff([]Quarantined{quarantinedA(), quarantinedB(), quarantinedC()}, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	wantAside(t, path, header+rowB+"x\n")
	wantAside(t, good, header+rowA+"y\n")
}

func TestDamageTwiceInOneSecondIsKeptTwice(t *testing.T) {
	d := open(t, t.TempDir())
	path := d.Path("quarantine.tsv")
	for _, text := range []string{"one\n", "two\n"} {
		write(t, path, text)
		must(t, os.Chtimes(path, at(1767236400), at(1767236400)))
		must(t, d.AppendQuarantine(t.Context(), quarantinedC()))
	}
	var got []string
	for _, p := range []string{path + ".damaged-1767236400", path + ".damaged-1767236400-2"} {
		got = append(got, read(t, p))
	}
	if diff := cmp.Diff([]string{"one\n", "two\n"}, got); diff != "" {
		t.Errorf("kept aside (-want +got):\n%s", diff)
	}
}

func TestQuarantineThatNeverWasIsEmpty(t *testing.T) {
	d := open(t, t.TempDir())
	rows, err := d.Quarantine()
	union, damage := d.QuarantineUnion()
	if len(rows)+len(union)+len(damage) != 0 || err != nil {
		t.Errorf("rows %v, %v; union %v, %v", rows, err, union, damage)
	}
	write(t, d.Path("quarantine.tsv"), header)
	if rows, err := d.Quarantine(); len(rows) != 0 || err != nil {
		t.Errorf("header alone: %v, %v", rows, err)
	}
}

func TestFutureTimeIsNotDamage(t *testing.T) {
	rows, damage := ParseQuarantine("q", strings.NewReader(header+
		"192.0.2.1:1\t9999999999\t2286-11-20T17:46:39Z\ts\ti\tr\t0\t\n"))
	if len(rows) != 1 || len(damage) != 0 {
		t.Errorf("rows %v, damage %v", rows, damage)
	}
}

func TestOtherScriptsIsoTimes(t *testing.T) {
	for _, iso := range []string{"2026-01-01T03:00:00Z", "2026-01-01T06:00:00+03:00", "2026-01-01T06:00:00+0300", "2026-01-01T03:00:01Z", ""} {
		rows, damage := ParseQuarantine("q", strings.NewReader(header+strings.Replace(rowA, "2026-01-01T03:00:00Z", iso, 1)))
		if diff := cmp.Diff([]Quarantined{quarantinedA()}, rows); diff != "" || len(damage) > 0 {
			t.Errorf("%q: damage %v, rows (-want +got):\n%s", iso, damage, diff)
		}
	}
}

func TestRightsAndPlaceOfAFileStay(t *testing.T) {
	d := open(t, t.TempDir())
	elsewhere := filepath.Join(t.TempDir(), "q.tsv")
	write(t, elsewhere, header)
	must(t, os.Chmod(elsewhere, 0o604))
	if os.Geteuid() == 0 {
		must(t, os.Chown(elsewhere, 65534, 65534))
	}
	must(t, os.Symlink(elsewhere, d.Path("quarantine.tsv")))
	want, err := os.Stat(elsewhere)
	must(t, err)
	must(t, d.AppendQuarantine(t.Context(), quarantinedB()))
	got, err := os.Lstat(elsewhere)
	must(t, err)
	if got.Mode() != want.Mode() || owner(got) != owner(want) || read(t, elsewhere) != header+rowB {
		t.Errorf("%v %v: %q", got.Mode(), owner(got), read(t, elsewhere))
	}
	if fi, err := os.Lstat(d.Path("quarantine.tsv")); err != nil || fi.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the symlink is gone: %v %v", fi.Mode(), err)
	}
}

func TestQuarantineSurvivesAnyRow(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "192.0.2.1:51820", "[::1]:1", "a\tb", "\x00", "vpn2"}))
	rapid.Check(t, func(rt *rapid.T) {
		q := Quarantined{
			Endpoint: text.Draw(rt, "endpoint"), Slot: text.Draw(rt, "slot"), Iface: text.Draw(rt, "iface"),
			Reason: text.Draw(rt, "reason"), Replacement: text.Draw(rt, "replacement"),
			FailedAt:  time.Unix(rapid.Int64Range(-10, 1<<41).Draw(rt, "failed"), rapid.Int64Range(0, 999_999_999).Draw(rt, "ns")),
			PoolMtime: time.Unix(rapid.Int64Range(-10, 1<<41).Draw(rt, "mtime"), 5),
		}
		want, err := q.clean()
		if err != nil {
			return
		}
		rows, damage := ParseQuarantine("q", strings.NewReader(string(formatQuarantine([]Quarantined{want, quarantinedA()}))))
		if diff := cmp.Diff([]Quarantined{want, quarantinedA()}, rows); diff != "" || len(damage) > 0 {
			rt.Fatalf("damage %v, rows (-want +got):\n%s", damage, diff)
		}
	})
}

func FuzzParseQuarantine(f *testing.F) {
	f.Add(header + rowA + rowB)
	for _, c := range damageCases() {
		f.Add(c.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rows, damage := ParseQuarantine("q", strings.NewReader(text))
		if len(damage) == 0 && !strings.HasPrefix(text, header) {
			t.Errorf("no complaint about %q", text)
		}
		if !slices.IsSortedFunc(damage, func(a, b DamageError) int { return a.Line - b.Line }) {
			t.Errorf("complaints out of order: %v", damage)
		}
		again, worse := ParseQuarantine("q", strings.NewReader(string(formatQuarantine(rows))))
		if diff := cmp.Diff(rows, again); diff != "" || len(worse) > 0 {
			t.Errorf("written again: damage %v, rows (-want +got):\n%s", worse, diff)
		}
	})
}
