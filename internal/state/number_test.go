package state

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

const day = "2026-01-02"

// helpCount adds one to a day's count, a hundred times, and takes as many sequence numbers.
func helpCount(dir string) error {
	d, err := Open(dir)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(os.Stdout)
	defer w.Flush()
	for range 20 {
		if _, err := d.AddCount(context.Background(), day, 1); err != nil {
			return err
		}
		seq, err := d.NextSeq(context.Background())
		if err != nil {
			return err
		}
		fmt.Fprintln(w, seq)
	}
	return nil
}

func TestProcessesCountTogether(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	var cs []*child
	for range 3 {
		cs = append(cs, startHelper(t, "count", dir, nil, nil))
	}
	seen := map[string]bool{}
	for _, c := range cs {
		lines, _ := c.rest(t)
		last := 0
		for _, l := range lines {
			n, err := strconv.Atoi(l)
			must(t, err)
			if seen[l] || n <= last {
				t.Errorf("sequence number %d after %d, seen before: %v", n, last, seen[l])
			}
			seen[l], last = true, n
		}
	}
	n, err := d.Count(day)
	must(t, err)
	if n != 60 || len(seen) != 60 {
		t.Errorf("counted %d and %d numbers, want 60", n, len(seen))
	}
}

func TestCount(t *testing.T) {
	d := open(t, t.TempDir())
	for i, want := range []int{1, 3, 0} {
		got, err := d.AddCount(t.Context(), day, []int{1, 2, -9}[i])
		must(t, err)
		if got != want {
			t.Errorf("sum %d, want %d", got, want)
		}
	}
	if got := read(t, d.Path("fail-counter", day+".count")); got != "0\n" {
		t.Errorf("file %q", got)
	}
	write(t, d.Path("fail-counter", day+".count"), "7\n") // by hand
	if n, err := d.Count(day); n != 7 || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
	if n, err := d.AddCount(t.Context(), "2026-01-03", 1); n != 1 || err != nil {
		t.Errorf("another day: %d, %v", n, err)
	}
	if _, err := os.Stat(d.Path("last-good", day+".count")); err == nil {
		t.Error("the copy of a past day is kept for ever")
	}
	if n, err := d.Count(day); n != 7 || err != nil {
		t.Errorf("a past day's count: %d, %v", n, err)
	}
	for _, bad := range []string{"", "today", "2026-1-2", "2026-13-01", "../../x"} {
		if _, err := d.AddCount(t.Context(), bad, 1); err == nil {
			t.Errorf("day %q was counted", bad)
		}
	}
}

func numberDamage() map[string]struct {
	text string
	line int
	msg  string
} {
	return map[string]struct {
		text string
		line int
		msg  string
	}{
		"no newline":      {"12", 1, "truncated line"},
		"CRLF":            {"12\r\n", 1, "CRLF"},
		"byte order mark": {"\xef\xbb\xbf12\n", 1, "byte order mark"},
		"two numbers":     {"12\n13\n", 2, "more than one line"},
		"a word":          {"twelve\n", 1, "bad number"},
		"negative":        {"-12\n", 1, "bad number"},
		"a space":         {"12 \n", 1, "bad number"},
		"too large":       {"1" + strings.Repeat("0", 30) + "\n", 1, "bad number"},
		"empty file":      {"", 1, "empty file"},
		"an empty line":   {"\n", 1, "bad number"},
		"NUL bytes":       {"12\n\x00\x00", 2, "control character"},
	}
}

func TestDamagedCount(t *testing.T) {
	for name, tt := range numberDamage() {
		t.Run(name, func(t *testing.T) {
			d := open(t, t.TempDir())
			path := d.Path("fail-counter", day+".count")
			_, err := d.AddCount(t.Context(), day, 4)
			must(t, err)
			write(t, path, tt.text)
			_, err = d.Count(day)
			wantDamage(t, err, path, tt.line, tt.msg)
			n, err := d.AddCount(t.Context(), day, 1)
			if n != 5 || err != nil {
				t.Errorf("count %d, %v: want 5 from the last good copy", n, err)
			}
			wantAside(t, path, tt.text)

			write(t, path, tt.text)
			must(t, os.Remove(d.Path("last-good", day+".count")))
			_, err = d.AddCount(t.Context(), day, 1)
			wantDamage(t, err, path, tt.line, tt.msg)
			if got := read(t, path); got != tt.text {
				t.Errorf("with no copy the file became %q", got)
			}
		})
	}
}

func TestDamagedSequenceNeverGoesBack(t *testing.T) {
	for name, tt := range numberDamage() {
		t.Run(name, func(t *testing.T) {
			d := open(t, t.TempDir())
			for want := uint64(1); want <= 3; want++ {
				got, err := d.NextSeq(t.Context())
				if got != want || err != nil {
					t.Fatalf("number %d, %v: want %d", got, err, want)
				}
			}
			write(t, d.Path("sequence"), tt.text)
			got, err := d.NextSeq(t.Context())
			if got != 1004 || err != nil {
				t.Errorf("number %d, %v: want 1004", got, err)
			}
			write(t, d.Path("sequence"), tt.text)
			write(t, d.Path("last-good", "sequence"), "x\n")
			_, err = d.NextSeq(t.Context())
			wantDamage(t, err, d.Path("sequence"), tt.line, tt.msg)
		})
	}
}

func FuzzParseNumber(f *testing.F) {
	f.Add("12\n")
	for _, c := range numberDamage() {
		f.Add(c.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, damage := ParseNumber("n", strings.NewReader(text))
		got := fmt.Sprintf("%d\n", n)
		if len(damage) == 0 && got != text && strings.TrimLeft(text, "0") != strings.TrimLeft(got, "0") {
			t.Errorf("%q was read as %d", text, n)
		}
	})
}
