package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// MaxLine bounds a line, in bytes: what is longer is damage and is skipped.
const MaxLine = 16 << 20

// Filter chooses events. Each field that is not zero must match.
type Filter struct {
	Kinds  []string  // any of them
	Object string    // vpn2
	Run    string    // id of the run
	Since  time.Time // not before
	Until  time.Time // before
}

// Match reports whether the event passes.
func (f Filter) Match(ev Event) bool {
	switch {
	case len(f.Kinds) > 0 && !slices.Contains(f.Kinds, ev.Kind),
		f.Object != "" && f.Object != ev.Object,
		f.Run != "" && f.Run != ev.Run,
		!f.Since.IsZero() && ev.Time.Before(f.Since),
		!f.Until.IsZero() && !ev.Time.Before(f.Until):
		return false
	}
	return true
}

// Read returns the events that pass the filter, oldest first, and every line that is none.
// A journal that never was is empty.
func Read(d *state.Dir, filter Filter) ([]Event, []state.DamageError) {
	path := d.Path(File)
	f, err := os.Open(path)
	if err != nil {
		return nil, openDamage(path, err)
	}
	defer f.Close()
	return Parse(path, f, filter)
}

// Parse reads a journal from r; file only names it in complaints.
func Parse(file string, r io.Reader, filter Filter) (events []Event, damage []state.DamageError) {
	br := bufio.NewReaderSize(r, 64<<10)
	for n := 1; ; n++ {
		line, long, err := readLine(br)
		if len(line) > 0 || long {
			ev, bad := parseLine(file, n, line, long)
			switch {
			case bad != nil:
				damage = append(damage, *bad)
			case filter.Match(ev):
				events = append(events, ev)
			}
		}
		if errors.Is(err, io.EOF) {
			return events, damage
		}
		if err != nil {
			return events, append(damage, state.DamageError{File: file, Line: n, Msg: "cannot be read: " + err.Error(), Err: err})
		}
	}
}

// readLine returns a line without its end; of one longer than MaxLine only that it is.
func readLine(br *bufio.Reader) (line []byte, long bool, err error) {
	for {
		part, err := br.ReadSlice('\n')
		if !long {
			line = append(line, part...)
			if long = len(line) > MaxLine; long {
				line = nil
			}
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSuffix(line, []byte("\n")), long, err
		}
	}
}

func parseLine(file string, n int, line []byte, long bool) (Event, *state.DamageError) {
	bad := &state.DamageError{
		File: file, Line: n,
		Hint: "the line is passed over; a crash or a full disk may have cut it off",
	}
	if long {
		bad.Msg = fmt.Sprintf("line of more than %d bytes", MaxLine)
		return Event{}, bad
	}
	var ev Event
	if err := json.Unmarshal(line, &ev); err != nil {
		bad.Msg = "not an event: " + strings.TrimPrefix(err.Error(), "json: ")
		return Event{}, bad
	}
	if ev.Kind == "" || ev.Time.IsZero() {
		bad.Msg = "not an event: no kind or no time"
		return Event{}, bad
	}
	return ev, nil
}

func openDamage(path string, err error) []state.DamageError {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	bad := state.DamageError{File: path, Msg: "cannot be read: " + err.Error(), Err: err}
	if errors.Is(err, fs.ErrPermission) {
		bad.Msg = "no permission to read"
		bad.Hint = "run as the user that owns the state folder, usually root"
	}
	return []state.DamageError{bad}
}

// tailBlock is how much Tail reads at a time, from the end.
const tailBlock = 64 << 10

// Tail returns the last n events that are readable, oldest first, and the lines among them
// that are not. It reads no more of the file than it needs.
func Tail(d *state.Dir, n int) ([]Event, []state.DamageError) {
	path := d.Path(File)
	f, err := os.Open(path)
	if err != nil {
		return nil, openDamage(path, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, openDamage(path, err)
	}
	t := tail{f: f, path: path, start: fi.Size()}
	for n > len(t.events) && t.start > 0 {
		if err := t.back(n); err != nil {
			return nil, openDamage(path, err)
		}
	}
	slices.Reverse(t.events)
	return t.events, t.complaints()
}

// tail walks a journal backwards. buf holds what lies before the lines already taken: the
// end of a line whose beginning is further up.
type tail struct {
	f      io.ReaderAt
	path   string
	start  int64 // offset of buf[0]
	buf    []byte
	events []Event // latest first
	bad    []struct {
		offset int64
		err    state.DamageError
	}
}

// back reads one block further up and takes the lines that are now whole.
func (t *tail) back(n int) error {
	size := min(t.start, max(tailBlock, int64(len(t.buf)))) // doubles inside a long line
	block := make([]byte, size, size+int64(len(t.buf)))
	if _, err := t.f.ReadAt(block, t.start-size); err != nil {
		return err
	}
	t.buf = append(block, t.buf...)
	t.start -= size
	for n > len(t.events) && len(t.buf) > 0 {
		body := bytes.TrimSuffix(t.buf, []byte("\n"))
		i := bytes.LastIndexByte(body, '\n')
		if i < 0 && t.start > 0 {
			return nil
		}
		t.take(body[i+1:], t.start+int64(i+1))
		t.buf = t.buf[:i+1]
	}
	return nil
}

func (t *tail) take(line []byte, offset int64) {
	if len(line) == 0 {
		return
	}
	ev, bad := parseLine(t.path, 0, line, len(line) > MaxLine)
	if bad == nil {
		t.events = append(t.events, ev)
		return
	}
	t.bad = append(t.bad, struct {
		offset int64
		err    state.DamageError
	}{offset, *bad})
}

// complaints gives the damage its line numbers, for which alone the beginning is read.
func (t *tail) complaints() []state.DamageError {
	var damage []state.DamageError
	line, at := 1, int64(0)
	for _, b := range slices.Backward(t.bad) {
		n, err := countLines(io.NewSectionReader(t.f, at, b.offset-at))
		if err == nil {
			line, at = line+n, b.offset
			b.err.Line = line
		}
		damage = append(damage, b.err)
	}
	return damage
}

func countLines(r io.Reader) (n int, err error) {
	buf := make([]byte, tailBlock)
	for {
		got, err := r.Read(buf)
		n += bytes.Count(buf[:got], []byte("\n"))
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}
