package state

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func asDamage(err error) (*DamageError, bool) {
	var e *DamageError
	ok := errors.As(err, &e)
	return e, ok
}

func TestFilesThatMayNotBeRead(t *testing.T) {
	dir, err := os.MkdirTemp("", "shunt-state-test-") //nolint:usetesting // another user must reach it
	must(t, err)
	t.Cleanup(func() {
		_ = os.Chmod(filepath.Join(dir, "locked"), 0o700)
		_ = os.RemoveAll(dir)
	})
	must(t, os.Chmod(dir, 0o711))
	home := filepath.Join(dir, "state")
	d := open(t, home)
	must(t, d.AppendQuarantine(t.Context(), quarantinedA()))
	must(t, d.UpdateKV(t.Context(), func(kv *KV) { kv.SetMode(ModeNormal, "", at(1)) }))
	_, err = d.AddCount(t.Context(), day, 1)
	must(t, err)
	_, err = d.NextSeq(t.Context())
	must(t, err)
	must(t, d.UpdateJSON(t.Context(), "egress.json", &map[string]int{}, func() error { return nil }))
	write(t, d.Path("pool.tsv"), goodPool)
	names := []string{"quarantine.tsv", "state.kv", "sequence", "egress.json", "pool.tsv", "fail-counter/" + day + ".count"}
	for _, name := range names {
		must(t, os.Chmod(d.Path(name), 0))
	}
	locked := filepath.Join(dir, "locked")
	must(t, os.Mkdir(locked, 0o500))

	// The folders are the stranger's, so that only the files stand in its way.
	var as *syscall.Credential
	if os.Geteuid() == 0 {
		as = &syscall.Credential{Uid: 65534, Gid: 65534}
		for _, p := range []string{"", "locks", "locks/state.lock", "last-good", "fail-counter"} {
			must(t, os.Chown(d.Path(p), 65534, 65534))
		}
	}
	before, err := os.ReadDir(home)
	must(t, err)
	c := startHelper(t, "stranger", home, []string{"LOCKED=" + locked}, as)
	got, _ := c.rest(t)

	no := func(name string) string { return d.Path(name) + ": no permission to read" }
	count := no("fail-counter/" + day + ".count")
	want := []string{
		locked + ": cannot be written: permission denied (hint)",
		no("quarantine.tsv") + " (hint)", no("state.kv") + " (hint)", count + " (hint)",
		no("sequence") + " (hint)", no("egress.json") + " (hint)", no("pool.tsv") + " (hint)",
		"append to quarantine: " + no("quarantine.tsv") + " (hint)",
		"update state.kv: " + no("state.kv") + " (hint)",
		"update egress.json: " + no("egress.json") + " (hint)",
		// One complaint more when the copy can't be read either, as another user's.
		got[len(got)-1],
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the stranger saw (-want +got):\n%s", diff)
	}
	after, err := os.ReadDir(home)
	must(t, err)
	if diff := cmp.Diff(listing(before), listing(after)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for _, name := range names {
		must(t, os.Chmod(d.Path(name), 0o640))
	}
	rows, err := d.Quarantine()
	must(t, err)
	if diff := cmp.Diff([]Quarantined{quarantinedA()}, rows); diff != "" {
		t.Errorf("with the rights back (-want +got):\n%s", diff)
	}
}

func listing(entries []os.DirEntry) []string {
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestOpenOfAFolderThatMayNotBeWritten(t *testing.T) {
	dir, err := os.MkdirTemp("", "shunt-state-test-") //nolint:usetesting // another user must reach it
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	open(t, filepath.Join(dir, "state"))
	must(t, os.Chmod(filepath.Join(dir, "state"), 0o555))
	var as *syscall.Credential
	if os.Geteuid() == 0 {
		as = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	c := startHelper(t, "stranger", filepath.Join(dir, "state"), []string{"LOCKED=" + filepath.Join(dir, "state")}, as)
	got, _ := c.line()
	want := filepath.Join(dir, "state") + ": cannot be written: permission denied (hint)"
	if got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}
