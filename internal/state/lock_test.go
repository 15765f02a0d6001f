package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// helpHold takes the lock "watchdog", says so and holds it until its input ends or it dies.
func helpHold(dir string) error {
	d, err := Open(dir)
	if err != nil {
		return err
	}
	l, err := d.Lock(context.Background(), "watchdog", "egress\trepair", time.Second)
	if err != nil {
		return err
	}
	if os.Getenv("SPAWN") != "" { // a hook's child that outlives us
		cmd := exec.Command("/bin/sleep", "1000")
		if err := cmd.Start(); err != nil {
			return err
		}
		fmt.Println(cmd.Process.Pid)
	}
	fmt.Println("held")
	_, _ = os.Stdin.Read(make([]byte, 1))
	return l.Unlock()
}

func owner(fi os.FileInfo) string {
	st := fi.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}

func TestLockOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	c := startHelper(t, "hold", dir, nil, nil)
	if l, _ := c.line(); l != "held" {
		t.Fatalf("helper: %q %s", l, c.errs)
	}
	begin := time.Now()
	_, err := d.Lock(t.Context(), "watchdog", "egress refresh", 60*time.Millisecond)
	took := time.Since(begin)
	var busy *BusyError
	if !errors.As(err, &busy) || busy.Name != "watchdog" {
		t.Fatalf("error %v, want a *BusyError", err)
	}
	want := regexp.MustCompile(fmt.Sprintf(`^egress repair \(pid %d, since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\)$`, c.Process.Pid))
	if !want.MatchString(busy.Holder) || d.Holder("watchdog") != busy.Holder {
		t.Errorf("holder %q and %q, want %s", busy.Holder, d.Holder("watchdog"), want)
	}
	if took < 60*time.Millisecond || took > 2*time.Second {
		t.Errorf("waited %v instead of 60 ms", took)
	}
	if reader, err := OpenRead(dir); err != nil || reader.Holder("watchdog") != busy.Holder {
		t.Errorf("for a reader: %v", err)
	}
	other, err := d.Lock(t.Context(), "pool", "egress refresh", 0)
	must(t, err)
	must(t, other.Unlock())

	must(t, c.in.Close())
	l, err := d.Lock(t.Context(), "watchdog", "egress refresh", 5*time.Second)
	must(t, err)
	if got := d.Holder("watchdog"); !strings.HasPrefix(got, fmt.Sprintf("egress refresh (pid %d, since ", os.Getpid())) {
		t.Errorf("holder %q", got)
	}
	must(t, l.Unlock())
	must(t, l.Unlock()) // again
	if got := d.Holder("watchdog"); got != "" {
		t.Errorf("holder %q of a free lock", got)
	}
}

func TestKilledHolderLosesTheLock(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	c := startHelper(t, "hold", dir, nil, nil)
	c.line()
	c.kill()
	if text := read(t, d.Path("locks", "watchdog.lock")); text == "" {
		t.Fatal("the killed holder had not signed: the test shows nothing")
	}
	if got := d.Holder("watchdog"); got != "" {
		t.Errorf("holder %q after its death", got)
	}
	l, err := d.Lock(t.Context(), "watchdog", "next run", 0)
	must(t, err)
	must(t, l.Unlock())
}

func TestChildThatOutlivesTheHolderKeepsNoLock(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	c := startHelper(t, "hold", dir, []string{"SPAWN=1"}, nil)
	text, _ := c.line()
	pid, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("helper: %q %s", text, c.errs)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	c.line()
	c.kill()
	l, err := d.Lock(t.Context(), "watchdog", "next run", 0)
	if err != nil {
		t.Fatalf("the child keeps it: %v", err)
	}
	must(t, l.Unlock())
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the child was gone (%v): the test shows nothing", err)
	}
}

func TestLookingAtTheHolderDisturbsNobody(t *testing.T) {
	d := open(t, t.TempDir())
	stop := make(chan struct{})
	looked := make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				looked <- n
				return
			default:
				d.Holder("state")
				n++
			}
		}
	}()
	for range 300 {
		l, err := d.Lock(t.Context(), "state", "test", 0)
		if err != nil {
			t.Fatalf("busy though nobody holds it: %v", err)
		}
		must(t, l.Unlock())
	}
	close(stop)
	if n := <-looked; n == 0 {
		t.Error("nobody looked")
	}
}

func TestLockEndsWithTheContext(t *testing.T) {
	d := open(t, t.TempDir())
	l, err := d.Lock(t.Context(), "pool", "a", 0)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := d.Lock(ctx, "pool", "b", time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	must(t, l.Unlock())
	if _, err := d.Lock(ctx, "pool", "b", time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a free lock under a dead context: %v", err)
	}
}

func TestRemovedLockFileMakesNoSecondHolderOfTheNewOne(t *testing.T) {
	d := open(t, t.TempDir())
	first, err := d.Lock(t.Context(), "pool", "a", 0)
	must(t, err)
	must(t, os.Remove(d.Path("locks", "pool.lock")))
	second, err := d.Lock(t.Context(), "pool", "b", 0)
	must(t, err)
	if _, err := d.Lock(t.Context(), "pool", "c", 0); err == nil {
		t.Error("two holders of one file")
	}
	must(t, first.Unlock())
	must(t, second.Unlock())
}

func TestLockNames(t *testing.T) {
	d := open(t, t.TempDir())
	for _, name := range []string{"", ".", "..", "../x", "a/b", "a b", ".hidden", "a\x00"} {
		if _, err := d.Lock(t.Context(), name, "x", 0); err == nil {
			t.Errorf("lock %q was taken", name)
		}
	}
	l, err := d.Lock(t.Context(), "lane-egress2", "x", 0)
	must(t, err)
	must(t, l.Unlock())
}
