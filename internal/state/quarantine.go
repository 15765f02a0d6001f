package state

import (
	"bytes"
	"context"
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
	quarantineFile   = "quarantine.tsv"
	quarantineHeader = "endpoint\tfailed_at_epoch\tfailed_at_iso\tslot\tiface\treason\told_pool_mtime_epoch\treplacement_endpoint"
)

// Quarantined is one row of quarantine.tsv: an endpoint that repair took out of a slot.
// Times are kept to the second, rounded down; compare a pool's mtime to the second too.
type Quarantined struct {
	Endpoint    string    `json:"endpoint"` // host:port
	FailedAt    time.Time `json:"failed_at"`
	Slot        string    `json:"slot"`
	Iface       string    `json:"iface"`
	Reason      string    `json:"reason"`
	PoolMtime   time.Time `json:"old_pool_mtime,omitzero"` // of the pool that listed it; zero = none did
	Replacement string    `json:"replacement"`             // host:port, "" until the repair is done
}

// key is what makes two rows the same event.
func (q Quarantined) key() string { return fmt.Sprintf("%s\t%d", q.Endpoint, q.FailedAt.Unix()) }

// clean returns the row as it will be read back, or why it can't be written.
func (q Quarantined) clean() (Quarantined, error) {
	q.Reason = oneLine(q.Reason)
	q.FailedAt = time.Unix(q.FailedAt.Unix(), 0).UTC()
	if q.PoolMtime.IsZero() || q.PoolMtime.Unix() == 0 {
		q.PoolMtime = time.Time{}
	} else {
		q.PoolMtime = time.Unix(q.PoolMtime.Unix(), 0).UTC()
	}
	if err := checkEndpoint(q.Endpoint); err != nil {
		return q, err
	}
	if q.Replacement != "" {
		if err := checkEndpoint(q.Replacement); err != nil {
			return q, fmt.Errorf("replacement: %w", err)
		}
	}
	for _, c := range [][2]string{
		{"endpoint", q.Endpoint}, {"slot", q.Slot}, {"iface", q.Iface}, {"replacement", q.Replacement},
	} {
		if err := checkColumn(c[0], c[1]); err != nil {
			return q, err
		}
	}
	for _, t := range []time.Time{q.FailedAt, q.PoolMtime} {
		if !t.IsZero() && (t.Unix() < 0 || t.Unix() > maxNumber) {
			return q, fmt.Errorf("time %s: out of range", t.Format(time.RFC3339))
		}
	}
	if q.FailedAt.IsZero() {
		return q, fmt.Errorf("endpoint %s: no time of failure", q.Endpoint)
	}
	return q, nil
}

func (q Quarantined) format() string {
	mtime := int64(0)
	if !q.PoolMtime.IsZero() {
		mtime = q.PoolMtime.Unix()
	}
	return strings.Join([]string{
		q.Endpoint, strconv.FormatInt(q.FailedAt.Unix(), 10), q.FailedAt.UTC().Format(time.RFC3339),
		q.Slot, q.Iface, q.Reason, strconv.FormatInt(mtime, 10), q.Replacement,
	}, "\t")
}

func formatQuarantine(rows []Quarantined) []byte {
	var b bytes.Buffer
	b.WriteString(quarantineHeader + "\n")
	for _, q := range rows {
		b.WriteString(q.format() + "\n")
	}
	return b.Bytes()
}

// ParseQuarantine reads quarantine.tsv and returns every row whose meaning is certain and
// everything that is wrong. file only names the source in complaints.
//
// The epoch is what counts; the ISO column is for people, but one that says another second
// is damage. A last line without its newline loses its replacement, which may be cut short.
func ParseQuarantine(file string, r io.Reader) (rows []Quarantined, damage []DamageError) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, []DamageError{*unreadable(file, err)}
	}
	lines, damage := splitLines(file, data)
	complain := func(n int, hint, format string, args ...any) {
		damage = append(damage, DamageError{File: file, Line: n, Msg: fmt.Sprintf(format, args...), Hint: hint})
	}
	header := false
	for _, l := range lines {
		if l.n == 1 && strings.HasPrefix(l.text, "endpoint\t") {
			header = true
			if l.text != quarantineHeader {
				complain(1, "the columns are: "+strings.ReplaceAll(quarantineHeader, "\t", " "), "other columns than ours")
				return nil, sortDamage(damage) // every row would be read by the wrong names
			}
			continue
		}
		q, err := parseQuarantined(l.text)
		if err != nil {
			complain(l.n, "correct the line or delete it", "%v", err)
			continue
		}
		if l.torn {
			q.Replacement = ""
		}
		rows = append(rows, q)
	}
	if !header && len(data) > 0 {
		complain(1, "the first line must name the columns: "+strings.ReplaceAll(quarantineHeader, "\t", " "), "no header line")
	}
	return rows, sortDamage(damage)
}

func sortDamage(damage []DamageError) []DamageError {
	slices.SortStableFunc(damage, func(a, b DamageError) int { return a.Line - b.Line })
	return damage
}

// splitRow cuts a row into its columns.
func splitRow(text string, want int) ([]string, error) {
	f := strings.Split(text, "\t")
	switch {
	case len(f) > want:
		return nil, fmt.Errorf("%d fields, want %d: a field too many", len(f), want)
	case len(f) < want:
		return nil, fmt.Errorf("%d fields, want %d: a field too few", len(f), want)
	}
	return f, nil
}

func parseQuarantined(text string) (Quarantined, error) {
	f, err := splitRow(text, 8)
	if err != nil {
		return Quarantined{}, err
	}
	q := Quarantined{Endpoint: f[0], Slot: f[3], Iface: f[4], Reason: f[5], Replacement: f[7]}
	if err := checkEndpoint(q.Endpoint); err != nil {
		return q, err
	}
	failed, err := parseUint(f[1])
	if err != nil {
		return q, fmt.Errorf("failed_at_epoch: %w", err)
	}
	q.FailedAt = time.Unix(failed, 0).UTC()
	// Two calls of date(1) by a script may straddle a second.
	if iso, err := time.Parse(time.RFC3339, f[2]); err == nil && iso.Sub(q.FailedAt).Abs() > 2*time.Second {
		return q, fmt.Errorf("failed_at_iso %s and failed_at_epoch %d are not the same time", f[2], failed)
	}
	mtime, err := parseUint(f[6])
	if err != nil {
		return q, fmt.Errorf("old_pool_mtime_epoch: %w", err)
	}
	if mtime > 0 {
		q.PoolMtime = time.Unix(mtime, 0).UTC()
	}
	if q.Replacement != "" {
		if err := checkEndpoint(q.Replacement); err != nil {
			return q, fmt.Errorf("replacement_endpoint: %w", err)
		}
	}
	return q, nil
}

// Quarantine returns the rows of an intact quarantine.tsv; a file that never was is empty.
// For a damaged one the error is a *DamageError and there are no rows: see QuarantineUnion.
func (d *Dir) Quarantine() ([]Quarantined, error) {
	data, found, bad := d.load(quarantineFile)
	if bad != nil {
		return nil, bad
	}
	if !found {
		return nil, nil
	}
	rows, damage := ParseQuarantine(d.Path(quarantineFile), bytes.NewReader(data))
	if len(damage) > 0 {
		return nil, firstDamage(d.withCopyHint(quarantineFile, damage))
	}
	return rows, nil
}

// QuarantineUnion returns the rows of an intact file, else every certain row of the damaged
// one together with those of the last good copy: too much rather than too little.
func (d *Dir) QuarantineUnion() (rows []Quarantined, damage []DamageError) {
	data, found, bad := d.load(quarantineFile)
	switch {
	case bad != nil:
		damage = []DamageError{*bad}
	case !found:
		return nil, nil
	default:
		rows, damage = ParseQuarantine(d.Path(quarantineFile), bytes.NewReader(data))
	}
	if len(damage) == 0 {
		return rows, nil
	}
	damage = d.withCopyHint(quarantineFile, damage)
	copyPath := d.lastGood(quarantineFile)
	last, err := os.ReadFile(copyPath)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return uniteRows(rows), damage
	case err != nil:
		return uniteRows(rows), append(damage, *unreadable(copyPath, err))
	}
	good, worse := ParseQuarantine(copyPath, bytes.NewReader(last))
	return uniteRows(rows, good), append(damage, worse...)
}

// uniteRows keeps every event once, the row with a replacement before one without.
func uniteRows(lists ...[]Quarantined) []Quarantined {
	var all []Quarantined
	at := map[string]int{}
	for _, rows := range lists {
		for _, q := range rows {
			i, seen := at[q.key()]
			switch {
			case !seen:
				at[q.key()] = len(all)
				all = append(all, q)
			case all[i].Replacement == "":
				all[i].Replacement = q.Replacement
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Quarantined) int { return a.FailedAt.Compare(b.FailedAt) })
	return all
}

// AppendQuarantine adds a row; the same endpoint at the same second is one event, so that a
// resumed run may add it again. It takes the state lock for at most two seconds. A damaged
// file is kept beside the new one as quarantine.tsv.damaged-SECOND, and the new one holds
// what QuarantineUnion gave. A file that can't be read at all is left alone: an error.
func (d *Dir) AppendQuarantine(ctx context.Context, q Quarantined) error {
	q, err := q.clean()
	if err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	return d.updateQuarantine(ctx, "append to quarantine", func(rows []Quarantined) ([]Quarantined, error) {
		for i := range rows {
			if rows[i].key() == q.key() {
				if q.Replacement == "" {
					q.Replacement = rows[i].Replacement
				}
				rows[i] = q
				return rows, nil
			}
		}
		return append(rows, q), nil
	})
}

// FillReplacement completes the row of that endpoint and second with what replaced it.
func (d *Dir) FillReplacement(ctx context.Context, endpoint string, failedAt time.Time, replacement string) error {
	want, err := Quarantined{Endpoint: endpoint, FailedAt: failedAt, Replacement: replacement}.clean()
	if err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	return d.updateQuarantine(ctx, "complete quarantine", func(rows []Quarantined) ([]Quarantined, error) {
		for i := range rows {
			if rows[i].key() == want.key() {
				rows[i].Replacement = want.Replacement
				return rows, nil
			}
		}
		return nil, fmt.Errorf("quarantine: no row of %s that failed at %s", endpoint, want.FailedAt.Format(time.RFC3339))
	})
}

func (d *Dir) updateQuarantine(ctx context.Context, what string, change func([]Quarantined) ([]Quarantined, error)) error {
	return d.underState(ctx, what, func() error {
		rows, damage := d.QuarantineUnion()
		if err := cannotHeal(damage); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		rows, err := change(rows)
		if err != nil {
			return err
		}
		if err := setDamagedAside(ctx, damage); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return d.save(ctx, quarantineFile, formatQuarantine(rows))
	})
}
