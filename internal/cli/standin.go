package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/shunt-net/shunt/internal/state"
	"github.com/shunt-net/shunt/internal/watchdog"
)

// A disk that is full, or was made read-only by its own errors, must not keep a virtual address
// at a dead candidate. A run that moves traffic then works on a copy of the state in memory,
// the stand-in, and says so. Later runs go on with it until the disk takes writes again.

// standIns is the folder of all stand-ins: gone after a boot, as the tables are.
const standIns = "/run/shunt-state"

// standsFor is a stand-in's file that says which files it was made of.
const standsFor = "stands-for"

// carried are the files of the state that a move needs, or makes better.
func carried() []string {
	return []string{"edge.json", "edge-holds.json", "sequence", watchdog.BeatFile}
}

// unwrittenError says that a state folder takes no writes, and what is worked on instead.
type unwrittenError struct {
	Path    string
	StandIn string
	Err     error // why not
}

func (e *unwrittenError) Error() string {
	return fmt.Sprintf("state folder %s takes no writes: %s; vetoes, epochs and journal are kept in %s for now", e.Path, e.Err, e.StandIn)
}

// errGoneOn is why a look takes a stand-in.
var errGoneOn = errors.New("the last run could not write there")

const unwrittenHint = "make room on its disk, or mount it for writing again: what was learned is taken over then"

// openToMove opens the state folder for a run that moves traffic, or a stand-in where it
// takes no writes: unwritten says why.
func openToMove(ctx context.Context, path string) (d *state.Dir, unwritten *unwrittenError, err error) {
	locks := false
	if d, err = state.Open(path); err == nil {
		err = takesLocks(d)
		locks = err == nil
	}
	if err == nil {
		err = hasRoom(d)
	}
	if err == nil {
		takeBack(ctx, path, d)
		return d, nil, nil
	}
	if os.Geteuid() != 0 || wrongPlace(err) {
		return nil, nil, err
	}
	u := &unwrittenError{Path: path, StandIn: standIn(path), Err: err}
	if d, err = makeStandIn(ctx, path, locks); err != nil {
		return nil, nil, errors.Join(u.Err, err)
	}
	return d, u, nil
}

// wrongPlace tells a path that can never hold a state folder from a disk that is in trouble.
func wrongPlace(err error) bool {
	for _, e := range []error{syscall.ENOTDIR, syscall.ENOENT, syscall.ELOOP, syscall.ENAMETOOLONG} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// takesLocks says whether the locks of a move can be had there.
func takesLocks(d *state.Dir) error {
	for _, name := range []string{"edge", "state", "journal", watchdog.LockName} {
		f, err := os.OpenFile(d.Path("locks", name+".lock"), os.O_CREATE|os.O_RDWR, 0o640)
		if err != nil {
			return err
		}
		_ = f.Close()
	}
	return nil
}

// hasRoom says whether what a run has to keep has room.
func hasRoom(d *state.Dir) error {
	size := int64(16 << 10)
	for _, name := range carried() {
		if fi, err := os.Stat(d.Path(name)); err == nil {
			size += fi.Size()
		}
	}
	f, err := os.CreateTemp(d.Path(), ".room-")
	if err != nil {
		return err
	}
	err = os.Remove(f.Name()) // it has no name while it is filled: nothing stays behind
	if err == nil {
		_, err = f.Write(make([]byte, size))
	}
	return errors.Join(err, f.Close())
}

// standIn is where the stand-in of a state folder is.
func standIn(path string) string {
	return filepath.Join(standIns, fmt.Sprintf("%x", sha256.Sum256([]byte(filepath.Clean(path))))[:12])
}

// makeStandIn opens a state folder's stand-in. Whatever was written to the folder itself since
// it was made is taken in. Locks are those of the folder where it gives any.
func makeStandIn(ctx context.Context, path string, locks bool) (*state.Dir, error) {
	dir := standIn(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("stand-in for it: %w", err)
	}
	link := filepath.Join(dir, "locks")
	if _, err := os.Lstat(link); locks && errors.Is(err, fs.ErrNotExist) {
		_ = os.Symlink(filepath.Join(path, "locks"), link) // else it has some of its own
	} else if _, err := os.Readlink(link); !locks && err == nil {
		_ = os.Remove(link)
	}
	d, err := state.Open(dir)
	if err != nil {
		return nil, err
	}
	lock, err := d.Lock(ctx, "state", "shunt", 2*time.Second)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock() //nolint:errcheck // the files are written
	mark := markOf(path)
	if old, err := os.ReadFile(d.Path(standsFor)); err == nil && string(old) == mark {
		return d, nil
	}
	for _, name := range carried() {
		for _, at := range []string{name, filepath.Join("last-good", name)} {
			raw, err := os.ReadFile(filepath.Join(path, at))
			if err != nil { // not there, or not to be read: a run goes on with what there is
				_ = os.Remove(d.Path(at))
				continue
			}
			if err := state.WriteFile(ctx, d.Path(at), raw, 0o640); err != nil {
				return nil, err
			}
		}
	}
	return d, state.WriteFile(ctx, d.Path(standsFor), []byte(mark), 0o640)
}

// markOf tells one state of a folder from the next.
func markOf(path string) string {
	out := path + "\n"
	for _, name := range []string{"edge.json", "edge-holds.json"} {
		m := fileState(filepath.Join(path, name))
		out += fmt.Sprintf("%s %d %d %d\n", name, m.inode, m.size, m.at.UnixNano())
	}
	return out
}

// aheadOf opens the stand-in that runs went on with, for reading; nil where there is none, or
// somebody wrote to the folder itself since.
func aheadOf(path string) *state.Dir {
	d, err := state.OpenRead(standIn(path))
	if err != nil {
		return nil
	}
	mark, err := os.ReadFile(d.Path(standsFor))
	if err != nil || string(mark) != markOf(path) || !fileState(d.Path("edge.json")).there() {
		return nil
	}
	return d
}

// takeBack brings what was learned meanwhile into a folder that takes writes again. What it
// can't bring is learned anew.
func takeBack(ctx context.Context, path string, d *state.Dir) {
	ahead := aheadOf(path)
	if ahead == nil {
		return
	}
	lock, err := d.Lock(ctx, "state", "shunt", 2*time.Second)
	if err != nil {
		return
	}
	defer lock.Unlock() //nolint:errcheck // the file is written
	if raw, err := os.ReadFile(ahead.Path("edge.json")); err == nil {
		_ = state.WriteFile(ctx, d.Path("edge.json"), raw, 0o640)
	}
}
