package state

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	kvFile    = "state.kv"
	maxStatus = 1 << 16 // of a refresh, either sign
)

// The keys of state.kv that have a meaning here. Others are kept as they are.
const (
	KeyMode               = "mode"
	KeyReason             = "reason"
	KeySince              = "since_epoch"
	KeyLastRefreshAttempt = "last_refresh_attempt_epoch"
	KeyLastRefreshRC      = "last_refresh_rc"
	KeyLastPoolMtime      = "last_successful_pool_mtime_epoch"
	KeyDailyFailureCount  = "daily_failure_count"
)

// Mode is the mode word of state.kv.
type Mode string

// The modes. ModeUnknown is that of a machine on which nothing has run yet.
const (
	ModeUnknown          Mode = ""
	ModeNormal           Mode = "normal"
	ModeSlotRepair       Mode = "slot_repair"
	ModeEmergencyRefresh Mode = "emergency_refresh"
	ModeDegraded         Mode = "degraded_no_fresh_pool"
	ModeDirect           Mode = "direct_failopen"
	ModeExternalRecovery Mode = "external_hmn_access_recovery"
)

// Modes returns every mode word.
func Modes() []Mode {
	return []Mode{ModeNormal, ModeSlotRepair, ModeEmergencyRefresh, ModeDegraded, ModeDirect, ModeExternalRecovery}
}

// Pair is one line of state.kv.
type Pair struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// KV is the content of state.kv: key=value lines in their order.
type KV struct {
	pairs []Pair
}

// Pairs returns the lines in their order.
func (kv KV) Pairs() []Pair { return slices.Clone(kv.pairs) }

// Get returns a value; ok is false when the key is not there.
func (kv KV) Get(key string) (value string, ok bool) {
	for _, p := range kv.pairs {
		if p.Key == key {
			return p.Value, true
		}
	}
	return "", false
}

// Set changes a value where it stands, or adds the key at the end. What would break the
// line (newlines, tabs) becomes a space; a key that can't be one is not set.
func (kv *KV) Set(key, value string) {
	if checkKey(key) != nil {
		return
	}
	value = oneLine(value)
	for i := range kv.pairs {
		if kv.pairs[i].Key == key {
			kv.pairs[i].Value = value
			return
		}
	}
	kv.pairs = append(kv.pairs, Pair{Key: key, Value: value})
}

// Mode returns the mode, ModeUnknown when none is written.
func (kv KV) Mode() Mode {
	v, _ := kv.Get(KeyMode)
	return Mode(v)
}

// SetMode writes mode and reason, and since when; since stays when the mode does.
func (kv *KV) SetMode(m Mode, reason string, since time.Time) {
	if _, ok := kv.Get(KeySince); !ok || kv.Mode() != m {
		defer kv.SetTime(KeySince, since)
	}
	kv.Set(KeyMode, string(m))
	kv.Set(KeyReason, reason)
}

// Int returns a number; ok is false when there is none.
func (kv KV) Int(key string) (n int, ok bool) {
	v, ok := kv.Get(key)
	if !ok || v == "" {
		return 0, false
	}
	n, err := strconv.Atoi(v)
	return n, err == nil
}

// SetInt writes a number.
func (kv *KV) SetInt(key string, n int) { kv.Set(key, strconv.Itoa(n)) }

// Time returns a time of whole seconds; zero when there is none.
func (kv KV) Time(key string) time.Time {
	v, _ := kv.Get(key)
	n, err := parseUint(v)
	if err != nil || n == 0 {
		return time.Time{}
	}
	return time.Unix(n, 0).UTC()
}

// SetTime writes a time as seconds since 1970, rounded down; the zero time is 0.
func (kv *KV) SetTime(key string, t time.Time) {
	n := int64(0)
	if !t.IsZero() {
		n = max(0, min(t.Unix(), maxNumber))
	}
	kv.Set(key, strconv.FormatInt(n, 10))
}

// Format returns the lines as they are written.
func (kv KV) Format() []byte {
	var b bytes.Buffer
	for _, p := range kv.pairs {
		b.WriteString(p.Key + "=" + p.Value + "\n")
	}
	return b.Bytes()
}

// MarshalJSON writes an array of {key, value}, which keeps the order.
func (kv KV) MarshalJSON() ([]byte, error) {
	if kv.pairs == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(kv.pairs)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (kv *KV) UnmarshalJSON(b []byte) error {
	kv.pairs = nil
	return json.Unmarshal(b, &kv.pairs)
}

// Equal reports whether both hold the same lines in the same order.
func (kv KV) Equal(other KV) bool { return slices.Equal(kv.pairs, other.pairs) }

// ParseKV reads state.kv and returns every certain line and everything that is wrong.
// file only names the source in complaints.
func ParseKV(file string, r io.Reader) (kv KV, damage []DamageError) {
	data, err := io.ReadAll(r)
	if err != nil {
		return kv, []DamageError{*unreadable(file, err)}
	}
	lines, damage := splitLines(file, data)
	for _, l := range lines {
		key, value, ok := strings.Cut(l.text, "=")
		err := checkKey(key)
		switch {
		case !ok:
			err = errors.New("no = in the line: want key=value")
		case err == nil:
			err = checkValue(key, value)
		}
		if _, twice := kv.Get(key); err == nil && twice {
			err = fmt.Errorf("key %s for the second time", key)
		}
		switch {
		case err != nil:
			damage = append(damage, DamageError{File: file, Line: l.n, Msg: err.Error(), Hint: "correct the line or delete it"})
		case !l.torn: // a torn value may be half a value
			kv.pairs = append(kv.pairs, Pair{Key: key, Value: value})
		}
	}
	return kv, sortDamage(damage)
}

func checkKey(key string) error {
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r == '=' || r == '#' || r == 0x7f }) {
		return fmt.Errorf("bad key %q: want a word before the =", key)
	}
	return nil
}

func checkValue(key, value string) error {
	if strings.Contains(value, "\t") {
		return fmt.Errorf("%s: tab in the value", key)
	}
	var err error
	switch key {
	case KeyMode:
		if m := Mode(value); m != ModeUnknown && !slices.Contains(Modes(), m) {
			err = fmt.Errorf("unknown mode %q", value)
		}
	case KeySince, KeyLastRefreshAttempt, KeyLastPoolMtime, KeyDailyFailureCount:
		if value != "" {
			_, err = parseUint(value)
		}
	case KeyLastRefreshRC:
		if n, e := strconv.Atoi(value); value != "" && (e != nil || n < -maxStatus || n > maxStatus) {
			err = fmt.Errorf("bad number %q", value)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// KV returns state.kv; a file that never was is empty. For a damaged one the error is a
// *DamageError, and the KV is that of the last good copy, or what is certain of the file
// when there is no copy.
func (d *Dir) KV() (KV, error) {
	kv, damage := d.kvAny()
	return kv, firstDamage(damage)
}

func (d *Dir) kvAny() (kv KV, damage []DamageError) {
	data, found, bad := d.load(kvFile)
	switch {
	case bad != nil:
		damage = []DamageError{*bad}
	case !found:
		return KV{}, nil
	default:
		kv, damage = ParseKV(d.Path(kvFile), bytes.NewReader(data))
	}
	if len(damage) == 0 {
		return kv, nil
	}
	damage = d.withCopyHint(kvFile, damage)
	copyPath := d.lastGood(kvFile)
	last, err := os.ReadFile(copyPath)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return kv, damage
	case err != nil:
		return kv, append(damage, *unreadable(copyPath, err))
	}
	if good, worse := ParseKV(copyPath, bytes.NewReader(last)); len(worse) > 0 {
		damage = append(damage, worse...)
	} else {
		kv = good
	}
	return kv, damage
}

// UpdateKV changes state.kv under the state lock (at most two seconds of waiting). A
// damaged file is kept as state.kv.damaged-SECOND, and change sees what KV returns for it. A
// file that can't be read at all is left alone: an error.
func (d *Dir) UpdateKV(ctx context.Context, change func(*KV)) error {
	return d.underState(ctx, "update state.kv", func() error {
		kv, damage := d.kvAny()
		if err := cannotHeal(damage); err != nil {
			return fmt.Errorf("update state.kv: %w", err)
		}
		change(&kv)
		out := kv.Format()
		if _, bad := ParseKV(d.Path(kvFile), bytes.NewReader(out)); len(bad) > 0 && len(kv.pairs) > 0 {
			return fmt.Errorf("update state.kv: would not be readable: %s", bad[0].Msg)
		}
		if len(kv.pairs) == 0 {
			return nil // never an empty file: that is what damage looks like
		}
		if err := setDamagedAside(ctx, damage); err != nil {
			return fmt.Errorf("update state.kv: %w", err)
		}
		return d.save(ctx, kvFile, out)
	})
}
