package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	sequenceFile = "sequence"
	// sequenceGap is added to a last good copy, which may lag behind numbers in use.
	sequenceGap = 1000
)

// ParseNumber reads a file that holds one integer, not negative, in one line.
func ParseNumber(file string, r io.Reader) (int64, []DamageError) {
	data, err := io.ReadAll(r)
	if err != nil {
		return 0, []DamageError{*unreadable(file, err)}
	}
	lines, damage := splitLines(file, data)
	if len(damage) > 0 {
		return 0, damage
	}
	n, err := parseUint(lines[0].text)
	if err != nil {
		damage = append(damage, DamageError{File: file, Line: 1, Msg: err.Error(), Hint: "write one number: echo 3 > " + file})
	}
	if len(lines) > 1 {
		damage = append(damage, DamageError{File: file, Line: 2, Msg: "more than one line", Hint: "leave one number only"})
	}
	if len(damage) > 0 {
		return 0, damage
	}
	return n, nil
}

func (d *Dir) number(name string) (n int64, found bool, damage []DamageError) {
	data, found, bad := d.load(name)
	if bad != nil {
		return 0, true, []DamageError{*bad}
	}
	if !found {
		return 0, false, nil
	}
	n, damage = ParseNumber(d.Path(name), bytes.NewReader(data))
	return n, true, d.withCopyHint(name, damage)
}

// changeNumber replaces a number by next(number). With a damaged file it goes on from the
// last good copy, to which gap is added; without one the damage is the error.
func (d *Dir) changeNumber(ctx context.Context, name string, gap int64, next func(int64) int64) (int64, error) {
	n, _, damage := d.number(name)
	if len(damage) > 0 {
		if err := cannotHeal(damage); err != nil {
			return 0, err
		}
		last, err := os.ReadFile(d.lastGood(name))
		if err != nil {
			return 0, firstDamage(damage)
		}
		good, worse := ParseNumber(d.lastGood(name), bytes.NewReader(last))
		if len(worse) > 0 {
			return 0, firstDamage(damage)
		}
		n = good + gap
		if err := setDamagedAside(ctx, damage); err != nil {
			return 0, err
		}
	}
	n = next(n)
	if n < 0 || n > maxNumber {
		return 0, fmt.Errorf("%s: %d is out of range", d.Path(name), n)
	}
	return n, d.save(ctx, name, []byte(strconv.FormatInt(n, 10)+"\n"))
}

func counterName(day string) (string, error) {
	if _, err := time.Parse(time.DateOnly, day); err != nil {
		return "", fmt.Errorf("fail counter: day %q: want YYYY-MM-DD", day)
	}
	return filepath.Join(counterDir, day+".count"), nil
}

// Count returns the failures counted on a day, YYYY-MM-DD in the machine's local time. A
// day without a file has none.
func (d *Dir) Count(day string) (int, error) {
	name, err := counterName(day)
	if err != nil {
		return 0, err
	}
	n, _, damage := d.number(name)
	return int(min(n, math.MaxInt32)), firstDamage(damage)
}

// AddCount adds n to the day's count under the state lock and returns the sum. A damaged
// file is kept aside and its last good copy counts; without one it is left alone: an error.
func (d *Dir) AddCount(ctx context.Context, day string, n int) (int, error) {
	name, err := counterName(day)
	if err != nil {
		return 0, err
	}
	var sum int64
	err = d.underState(ctx, "add to fail counter", func() error {
		var err error
		sum, err = d.changeNumber(ctx, name, 0, func(have int64) int64 { return max(0, have+int64(n)) })
		if err != nil {
			return fmt.Errorf("add to fail counter: %w", err)
		}
		return d.dropOldCopies(day)
	})
	if err != nil {
		return 0, err
	}
	return int(min(sum, math.MaxInt32)), nil
}

// dropOldCopies removes the last good copies of other days' counters but not the counters.
func (d *Dir) dropOldCopies(day string) error {
	entries, err := os.ReadDir(d.Path(lastGoodDir))
	if err != nil {
		return fmt.Errorf("fail counter: %w", err)
	}
	for _, e := range entries {
		other, ok := strings.CutSuffix(e.Name(), ".count")
		if !ok || other == day {
			continue
		}
		err := os.Remove(d.Path(lastGoodDir, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("fail counter: %w", err)
		}
	}
	return nil
}

// NextSeq returns a number that is greater than every one before, for ordering events on a
// machine whose clock jumps. A damaged file goes on from its last good copy plus a thousand;
// the error is a *DamageError only when neither can be read.
func (d *Dir) NextSeq(ctx context.Context) (uint64, error) {
	var seq int64
	err := d.underState(ctx, "next sequence number", func() error {
		var err error
		seq, err = d.changeNumber(ctx, sequenceFile, sequenceGap, func(n int64) int64 { return n + 1 })
		return err
	})
	if err != nil {
		return 0, err
	}
	return uint64(seq), nil
}
