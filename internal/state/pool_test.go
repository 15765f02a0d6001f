package state

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const goodPool = "rank\tfile\tendpoint\tavg_ms\tping_loss\tconfig_path\n" +
	"1\tnl-3.conf\t192.121.163.235:42530\t41.5\t0\t/p/conf/nl-3.conf\n" +
	"2\tde-1.conf\t[2001:db8::1]:51820\t100.0\t12.5\t/p/conf/de-1.conf\n"

func goodRows() []PoolRow {
	return []PoolRow{
		{1, "nl-3.conf", "192.121.163.235:42530", 41500 * time.Microsecond, 0, "/p/conf/nl-3.conf"},
		{2, "de-1.conf", "[2001:db8::1]:51820", 100 * time.Millisecond, 12.5, "/p/conf/de-1.conf"},
	}
}

func TestPoolFileIsTheContract(t *testing.T) {
	if diff := cmp.Diff(goodPool, string(FormatPool(goodRows()))); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	for name, text := range map[string]string{
		"with a header":       goodPool,
		"without one":         strings.TrimPrefix(goodPool, poolHeader+"\n"),
		"loss with a percent": strings.NewReplacer("\t0\t", "\t0%\t", "12.5", "12.50%").Replace(goodPool),
		"finer milliseconds":  strings.Replace(goodPool, "100.0", "100", 1),
	} {
		rows, damage := ParsePool("p", strings.NewReader(text))
		if diff := cmp.Diff(goodRows(), rows); diff != "" || len(damage) > 0 {
			t.Errorf("%s: damage %v, rows (-want +got):\n%s", name, damage, diff)
		}
	}
	rows, damage := ParsePool("p", strings.NewReader(poolHeader+"\n"))
	if len(rows)+len(damage) > 0 {
		t.Errorf("header alone: %v, %v", rows, damage)
	}
}

func TestReadPool(t *testing.T) {
	path := filepath.Join(t.TempDir(), "strict.tsv")
	_, _, err := ReadPool(path)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	wantDamage(t, err, path, 0, "missing")
	write(t, path, goodPool)
	began := at(1767236400).Add(700 * time.Millisecond)
	must(t, os.Chtimes(path, began, began))
	rows, mtime, err := ReadPool(path)
	must(t, err)
	if diff := cmp.Diff(goodRows(), rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if !mtime.Equal(at(1767236400)) {
		t.Errorf("mtime %v: want it rounded down, as failed_at is", mtime)
	}
}

func TestDamagedPool(t *testing.T) {
	swap := func(old, repl string) string { return strings.Replace(goodPool, old, repl, 1) }
	tests := map[string]struct {
		text string
		line int
		msg  string
		rows int
	}{
		"truncated in the path":  {goodPool[:len(goodPool)-4], 3, "truncated line", 1},
		"truncated row":          {goodPool + "3\tfr", 4, "truncated line", 2},
		"CRLF":                   {strings.ReplaceAll(goodPool, "\n", "\r\n"), 1, "CRLF", 2},
		"byte order mark":        {"\xef\xbb\xbf" + goodPool, 1, "byte order mark", 2},
		"a field too many":       {swap("nl-3.conf\t", "nl-3.conf\t\t"), 2, "too many", 1},
		"a field too few":        {swap("\tnl-3.conf\t", "\t"), 2, "too few", 1},
		"rank 0":                 {swap("1\tnl", "0\tnl"), 2, "bad number", 1},
		"rank in words":          {swap("1\tnl", "one\tnl"), 2, "bad number", 1},
		"rank twice":             {swap("2\tde", "1\tde"), 3, "second time, first in line 2", 1},
		"endpoint twice":         {swap("[2001:db8::1]:51820", "192.121.163.235:42530"), 3, "second time, first in line 2", 1},
		"time not a number":      {swap("41.5", "NaN"), 2, "bad number", 1},
		"time infinite":          {swap("41.5", "Inf"), 2, "bad number", 1},
		"time negative":          {swap("41.5", "-41.5"), 2, "bad number", 1},
		"time with two points":   {swap("41.5", "4.1.5"), 2, "bad number", 1},
		"time with a comma":      {swap("41.5", "41,5"), 2, "bad number", 1},
		"time of an hour":        {swap("41.5", "3600000"), 2, "more than", 1},
		"loss over a hundred":    {swap("12.5", "101"), 3, "more than", 1},
		"no loss":                {swap("12.5", ""), 3, "bad number", 1},
		"no path":                {swap("/p/conf/nl-3.conf", ""), 2, "config_path", 1},
		"endpoint with no port":  {swap(":42530", ""), 2, "host:port", 1},
		"other columns":          {"rank\tendpoint\n" + goodPool, 1, "other columns", 0},
		"empty file":             {"", 1, "empty file", 0},
		"an answer in HTML":      {"<!DOCTYPE html>\n<html></html>\n", 1, "too few", 0},
		"NUL bytes":              {goodPool + "\x00\x00\x00\x00", 4, "control character", 2},
		"escape sequence in row": {swap("nl-3", "\x1b[31mnl"), 2, "control character", 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "pool.tsv")
			write(t, path, tt.text)
			rows, _, err := ReadPool(path)
			wantDamage(t, err, path, tt.line, tt.msg)
			if rows != nil {
				t.Errorf("rows of a damaged pool: %v", rows)
			}
			if rows, _ := ParsePool(path, strings.NewReader(tt.text)); len(rows) != tt.rows {
				t.Errorf("certain rows: %v, want %d", rows, tt.rows)
			}
		})
	}
}

func TestPoolSurvivesAnyName(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := []PoolRow{{
			Rank: rapid.IntRange(1, math.MaxInt32).Draw(rt, "rank"), Endpoint: "192.0.2.1:1",
			File: rapid.String().Draw(rt, "file"), ConfigPath: "/" + rapid.String().Draw(rt, "path"),
			Avg:  time.Duration(rapid.IntRange(0, 6_000_000).Draw(rt, "avg")) * 100 * time.Microsecond,
			Loss: rapid.Float64Range(0, 100).Draw(rt, "loss"),
		}}
		rows, damage := ParsePool("p", strings.NewReader(string(FormatPool(want))))
		want[0].File, want[0].ConfigPath = plain(want[0].File), plain(want[0].ConfigPath)
		if diff := cmp.Diff(want, rows); diff != "" || len(damage) > 0 {
			rt.Fatalf("damage %v, rows (-want +got):\n%s", damage, diff)
		}
	})
}

func FuzzParsePool(f *testing.F) {
	for _, s := range []string{
		goodPool, "", "1\ta\t1.1.1.1:1\t1\t0%\t/c\n", goodPool[:50], strings.ReplaceAll(goodPool, "\n", "\r\n"),
		"1\ta\t[::1]:1\t.\t100\t/c\n", "1\ta\t\xff:1\t1\t0\t\xfe\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rows, damage := ParsePool("p", strings.NewReader(text))
		if len(damage) == 0 && len(text) == 0 {
			t.Error("no complaint about nothing")
		}
		once := string(FormatPool(rows))
		again, worse := ParsePool("p", strings.NewReader(once))
		if len(worse) > 0 || string(FormatPool(again)) != once || len(again) != len(rows) {
			t.Errorf("written again: %v\n%s", worse, once)
		}
	})
}
