package watchdog

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
	"github.com/shunt-net/shunt/internal/tripwire"
)

// BeatFile is the heartbeat in the state folder.
const BeatFile = "watchdog.json"

// beatEvery is between two heartbeats.
const beatEvery = 2 * time.Second

// overdue is the age from which on a heartbeat is late. A run that ended is missed like any
// other: its successor's first sign comes at once.
const overdue = 10 * time.Second

// Beat is a sign of life.
type Beat struct {
	PID      int               `json:"pid"`
	Holder   string            `json:"holder"`
	Began    time.Time         `json:"began"`             // when it took over
	At       time.Time         `json:"at"`                // when this was written
	Until    time.Time         `json:"until"`             // the run's end
	Ended    bool              `json:"ended,omitempty"`   // it let go
	Longest  time.Duration     `json:"longest,omitempty"` // time that it did not run at a stretch, though it wanted to
	Wires    int               `json:"wires"`             // tripwires
	Armed    int               `json:"armed"`             // … that stand
	GivenUp  []string          `json:"given_up,omitempty"`
	Troubles map[string]string `json:"troubles,omitempty"` // what fails -> why
	Summary  Summary           `json:"summary"`            // without moves: the journal has them
}

// Late says whether the next sign of life is overdue.
func (b Beat) Late(now time.Time) bool { return now.Sub(b.At) > overdue }

// ReadBeat reads the last sign of life of a watchdog. The error is fs.ErrNotExist where
// none ever was.
func ReadBeat(d *state.Dir) (Beat, error) {
	var b Beat
	raw, err := os.ReadFile(d.Path(BeatFile))
	if err == nil {
		err = json.Unmarshal(raw, &b)
	}
	if err != nil {
		return Beat{}, fmt.Errorf("heartbeat: %w", err)
	}
	return b, nil
}

// beats writes the signs of life of one run.
type beats struct {
	w            *Watchdog
	began, until time.Time
}

func newBeats(w *Watchdog) *beats {
	now := w.o.Now()
	return &beats{w: w, began: now.Round(0), until: now.Add(w.until.Sub(clock())).Round(time.Millisecond)}
}

func (b *beats) run(ctx context.Context) {
	for ok := true; ok; ok = run.Pause(ctx, beatEvery) == nil {
		b.w.clerk.trouble("heartbeat", b.write(false))
	}
}

func (b *beats) last() { b.w.clerk.trouble("heartbeat", b.write(true)) }

func (b *beats) write(ended bool) error {
	beat := Beat{
		PID: os.Getpid(), Holder: b.w.o.Holder, Began: b.began, At: b.w.o.Now().Round(0), Until: b.until, Ended: ended,
		Troubles: b.w.clerk.now(), Summary: b.w.sum.get(),
	}
	beat.Summary.Moves = nil
	if e := b.w.eye.Load(); e != nil {
		e.report(&beat)
	}
	raw, err := json.MarshalIndent(beat, "", "  ")
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	return replace(b.w.o.State.Path(), append(raw, '\n'))
}

// replace puts the file in place at once for readers. It need not outlive a power cut, so
// nobody waits for the disk. Should we die in between, the folder's sweep knows the name.
func replace(dir string, data []byte) error {
	tmp := fmt.Sprintf("%s/.%s%d", dir, BeatFile, os.Getpid())
	if err := os.WriteFile(tmp, data, 0o640); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	if err := os.Rename(tmp, dir+"/"+BeatFile); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	return nil
}

// report says how the tripwires stand.
func (e *eye) report(b *Beat) {
	b.Longest = e.probes.longest()
	if e.wires == nil {
		return
	}
	for _, s := range e.wires.Status() {
		b.Wires++
		switch s.State {
		case tripwire.StateArmed, tripwire.StateLocal:
			b.Armed++
		case tripwire.StateGivenUp:
			for _, c := range e.watched[s.Addr] {
				b.GivenUp = append(b.GivenUp, c.name)
			}
		case tripwire.StateUnknown, tripwire.StateDialing, tripwire.StateWaiting:
		}
	}
	slices.Sort(b.GivenUp)
}
