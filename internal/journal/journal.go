// Package journal records what was done and why, one JSON object per line of events.jsonl.
package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

// File is the name of the journal inside the state folder.
const File = "events.jsonl"

// lockWait bounds the wait for another process's append.
const lockWait = 2 * time.Second

// Event is one line: a transition, an apply, or what held one back.
type Event struct {
	Time    time.Time          `json:"time"`
	Command string             `json:"command"`          // egress repair
	Run     string             `json:"run"`              // id of the run
	Seq     uint64             `json:"seq,omitempty"`    // of the run; orders events when the clock jumps
	Kind    string             `json:"kind"`             // verdict, lend, return, quarantine, swap, rollback, mode …
	Object  string             `json:"object,omitempty"` // vpn2
	From    string             `json:"from,omitempty"`
	To      string             `json:"to,omitempty"`
	Reason  string             `json:"reason,omitempty"`
	Figures map[string]float64 `json:"figures,omitempty"` // milliseconds unless the name says otherwise
	Plan    json.RawMessage    `json:"plan,omitempty"`
}

// Append adds events in one write and makes them durable. A line that a killed writer left
// torn is ended first, so that it spoils no other. When the write fails half way (a full
// disk), what was written is taken back. The point "journal.appended" follows.
func Append(ctx context.Context, d *state.Dir, events ...Event) (err error) {
	if len(events) == 0 {
		return nil
	}
	data, err := encode(events)
	if err != nil {
		return err
	}
	lock, err := d.Lock(ctx, "journal", "append to journal", lockWait)
	if err != nil {
		return fmt.Errorf("append to journal: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	if err := appendTo(d.Path(File), d.Path(), data); err != nil {
		return fmt.Errorf("append to journal: %w", err)
	}
	run.Point(ctx, "journal.appended")
	return nil
}

func encode(events []Event) ([]byte, error) {
	var b bytes.Buffer
	for _, ev := range events {
		if ev.Time.IsZero() || ev.Kind == "" {
			return nil, fmt.Errorf("append to journal: event %q of %q: wants a time and a kind", ev.Kind, ev.Object)
		}
		ev.Figures = finite(ev.Figures)
		line, err := json.Marshal(ev)
		if err != nil {
			return nil, fmt.Errorf("append to journal: event %s: %w", ev.Kind, err)
		}
		b.Write(line)
		b.WriteByte('\n')
	}
	return b.Bytes(), nil
}

// finite drops what JSON has no word for; an event is worth more than one of its figures.
func finite(figures map[string]float64) map[string]float64 {
	kept := make(map[string]float64, len(figures))
	for name, v := range figures {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			kept[name] = v
		}
	}
	return kept
}

func appendTo(path, dir string, data []byte) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	size := fi.Size()
	if torn, err := endsTorn(f, size); err != nil {
		return err
	} else if torn {
		data = append([]byte{'\n'}, data...)
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Truncate(size))
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if size > 0 {
		return nil
	}
	return syncFolder(dir)
}

func endsTorn(f io.ReaderAt, size int64) (bool, error) {
	if size == 0 {
		return false, nil
	}
	var last [1]byte
	if _, err := f.ReadAt(last[:], size-1); err != nil {
		return false, err
	}
	return last[0] != '\n', nil
}

// syncFolder makes the name of a new journal durable.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}
