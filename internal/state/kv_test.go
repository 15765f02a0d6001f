package state

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const goodKV = "mode=degraded_no_fresh_pool\nreason=refresh failed: a=b\nsince_epoch=1767236400\n" +
	"last_refresh_attempt_epoch=1767240000\nlast_refresh_rc=1\nlast_successful_pool_mtime_epoch=1767225600\n" +
	"daily_failure_count=5\nlocal_note=kept\n"

func TestKVKeepsOrderAndUnknownKeys(t *testing.T) {
	d := open(t, t.TempDir())
	write(t, d.Path("state.kv"), goodKV)
	kv, err := d.KV()
	must(t, err)
	if kv.Mode() != ModeDegraded || !kv.Time(KeySince).Equal(at(1767236400)) {
		t.Errorf("mode %q since %v", kv.Mode(), kv.Time(KeySince))
	}
	if n, ok := kv.Int(KeyDailyFailureCount); n != 5 || !ok {
		t.Errorf("count %d %v", n, ok)
	}
	if v, ok := kv.Get(KeyReason); v != "refresh failed: a=b" || !ok {
		t.Errorf("reason %q %v", v, ok)
	}
	must(t, d.UpdateKV(t.Context(), func(kv *KV) {
		kv.SetMode(ModeDegraded, "still\nfailing", at(1767300000)) // the same mode: since stays
		kv.SetInt(KeyLastRefreshRC, -15)
		kv.SetTime(KeyLastRefreshAttempt, at(1767300000).Add(900*time.Millisecond))
		kv.Set("bad key", "x")
	}))
	want := strings.NewReplacer("refresh failed: a=b", "still failing", "rc=1", "rc=-15", "1767240000", "1767300000").Replace(goodKV)
	if diff := cmp.Diff(want, read(t, d.Path("state.kv"))); diff != "" {
		t.Errorf("state.kv (-want +got):\n%s", diff)
	}
	must(t, d.UpdateKV(t.Context(), func(kv *KV) { kv.SetMode(ModeNormal, "fresh pool", at(1767400000)) }))
	kv, err = d.KV()
	must(t, err)
	if kv.Mode() != ModeNormal || !kv.Time(KeySince).Equal(at(1767400000)) {
		t.Errorf("mode %q since %v", kv.Mode(), kv.Time(KeySince))
	}
}

func TestFirstKV(t *testing.T) {
	d := open(t, t.TempDir())
	kv, err := d.KV()
	if kv.Mode() != ModeUnknown || err != nil {
		t.Errorf("mode %q, %v", kv.Mode(), err)
	}
	must(t, d.UpdateKV(t.Context(), func(*KV) {}))
	if _, err := os.Stat(d.Path("state.kv")); err == nil {
		t.Error("nothing to write made a file")
	}
	must(t, d.UpdateKV(t.Context(), func(kv *KV) {
		kv.SetMode(ModeNormal, "", at(1))
		kv.SetTime(KeyLastRefreshAttempt, time.Time{})
	}))
	if diff := cmp.Diff("mode=normal\nreason=\nlast_refresh_attempt_epoch=0\nsince_epoch=1\n", sorted(read(t, d.Path("state.kv")), "mode", "reason", "last", "since")); diff != "" {
		t.Errorf("state.kv (-want +got):\n%s", diff)
	}
	if kv, _ := d.KV(); !kv.Time(KeyLastRefreshAttempt).IsZero() {
		t.Error("0 is a time")
	}
	if err := d.UpdateKV(t.Context(), func(kv *KV) { kv.Set(KeyMode, "panic") }); err == nil {
		t.Error("a mode that does not exist was written")
	}
}

// sorted puts the lines in the order of their beginnings.
func sorted(text string, heads ...string) string {
	var b strings.Builder
	for _, h := range heads {
		for l := range strings.Lines(text) {
			if strings.HasPrefix(l, h) {
				b.WriteString(l)
			}
		}
	}
	return b.String()
}

func TestKVUnchangedIsNotWritten(t *testing.T) {
	d := open(t, t.TempDir())
	change := func(kv *KV) { kv.Set(KeyMode, string(ModeNormal)) }
	must(t, d.UpdateKV(t.Context(), change))
	before, err := os.Stat(d.Path("state.kv"))
	must(t, err)
	must(t, d.UpdateKV(t.Context(), change))
	after, err := os.Stat(d.Path("state.kv"))
	must(t, err)
	if !os.SameFile(before, after) {
		t.Error("the same content was written again")
	}
}

func TestDamagedKV(t *testing.T) {
	tests := map[string]struct {
		text string
		line int
		msg  string
	}{
		"truncated value":  {"mode=normal\nreason=upl", 2, "truncated line"},
		"CRLF":             {strings.ReplaceAll(goodKV, "\n", "\r\n"), 1, "CRLF"},
		"byte order mark":  {"\xef\xbb\xbf" + goodKV, 1, "byte order mark"},
		"no =":             {"mode=normal\nnonsense\n", 2, "no ="},
		"a comment":        {"# by hand\n" + goodKV, 1, "no ="},
		"a space":          {"mode =normal\n", 1, "bad key"},
		"a tab":            {"mode=normal\nreason=a\tb\n", 2, "tab"},
		"key twice":        {goodKV + "mode=normal\n", 9, "second time"},
		"unknown mode":     {"mode=Normal\n", 1, "unknown mode"},
		"bad epoch":        {"since_epoch=12:30\n", 1, "bad number"},
		"bad count":        {"daily_failure_count=-1\n", 1, "bad number"},
		"bad status":       {"last_refresh_rc=1.0\n", 1, "bad number"},
		"empty file":       {"", 1, "empty file"},
		"NUL bytes":        {goodKV + "\x00\x00\x00\n", 9, "control character"},
		"only NUL bytes":   {strings.Repeat("\x00", 99), 1, "control character"},
		"an empty line":    {"mode=normal\n\n", 2, "no ="},
		"a shell's export": {"export mode=normal\n", 1, "bad key"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := open(t, t.TempDir())
			write(t, d.Path("state.kv"), goodKV)
			must(t, d.UpdateKV(t.Context(), func(kv *KV) { kv.SetInt(KeyDailyFailureCount, 6) }))
			good, err := d.KV()
			must(t, err)
			write(t, d.Path("state.kv"), tt.text)

			got, err := d.KV()
			wantDamage(t, err, d.Path("state.kv"), tt.line, tt.msg)
			if !got.Equal(good) {
				t.Errorf("got %v, want the last good copy %v", got.Pairs(), good.Pairs())
			}
			must(t, d.UpdateKV(t.Context(), func(kv *KV) { kv.SetInt(KeyDailyFailureCount, 7) }))
			got, err = d.KV()
			must(t, err)
			good.SetInt(KeyDailyFailureCount, 7)
			if diff := cmp.Diff(good.Pairs(), got.Pairs()); diff != "" {
				t.Errorf("after an update (-want +got):\n%s", diff)
			}
			wantAside(t, d.Path("state.kv"), tt.text)
		})
	}
}

func TestDamagedKVWithoutACopyGivesWhatIsCertain(t *testing.T) {
	d := open(t, t.TempDir())
	write(t, d.Path("state.kv"), "mode=direct_failopen\nreason=VPN exh")
	kv, err := d.KV()
	wantDamage(t, err, d.Path("state.kv"), 2, "truncated")
	if diff := cmp.Diff([]Pair{{"mode", "direct_failopen"}}, kv.Pairs()); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestMissingKVIsDamageOnceThereWasOne(t *testing.T) {
	d := open(t, t.TempDir())
	must(t, d.UpdateKV(t.Context(), func(kv *KV) { kv.SetMode(ModeDirect, "exhausted", at(5)) }))
	must(t, os.Remove(d.Path("state.kv")))
	kv, err := d.KV()
	wantDamage(t, err, d.Path("state.kv"), 0, "missing")
	if kv.Mode() != ModeDirect {
		t.Errorf("mode %q, want that of the copy", kv.Mode())
	}
}

func TestKVAsJSON(t *testing.T) {
	kv, damage := ParseKV("kv", strings.NewReader(goodKV))
	if len(damage) > 0 {
		t.Fatal(damage)
	}
	for _, want := range []KV{kv, {}} {
		b, err := json.Marshal(want)
		must(t, err)
		var got KV
		must(t, json.Unmarshal(b, &got))
		if !got.Equal(want) {
			t.Errorf("%s: got %v", b, got.Pairs())
		}
	}
}

func TestKVSurvivesAnyText(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var kv KV
		kv.Set("first", "x")
		for range rapid.IntRange(0, 5).Draw(rt, "n") {
			kv.Set(rapid.String().Draw(rt, "key"), rapid.String().Draw(rt, "value"))
		}
		got, damage := ParseKV("kv", strings.NewReader(string(kv.Format())))
		for _, e := range damage {
			if !strings.Contains(e.Msg, "mode") && !strings.Contains(e.Msg, "number") {
				rt.Fatalf("%v in %q", e, kv.Format())
			}
		}
		if len(damage) == 0 && !got.Equal(kv) {
			rt.Fatalf("got %v, want %v", got.Pairs(), kv.Pairs())
		}
	})
}

func FuzzParseKV(f *testing.F) {
	for _, s := range []string{goodKV, "", "mode=\n", "mode=normal", "a=b=c\n", "=x\n", "\xef\xbb\xbfmode=normal\r\n", "a=1\na=2\n", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		kv, damage := ParseKV("kv", strings.NewReader(text))
		if len(damage) == 0 && string(kv.Format()) != text {
			t.Errorf("no complaint about %q, yet it reads back as %q", text, kv.Format())
		}
		if len(kv.Pairs()) == 0 {
			return
		}
		again, worse := ParseKV("kv", strings.NewReader(string(kv.Format())))
		if !again.Equal(kv) || len(worse) > 0 {
			t.Errorf("%q: %v, want %v; %v", text, again.Pairs(), kv.Pairs(), worse)
		}
	})
}
