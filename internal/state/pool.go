package state

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

const poolHeader = "rank\tfile\tendpoint\tavg_ms\tping_loss\tconfig_path"

// PoolRow is one row of a pool file.
type PoolRow struct {
	Rank       int           `json:"rank"` // from 1
	File       string        `json:"file"` // name of the profile, vpn-nl-3.conf
	Endpoint   string        `json:"endpoint"`
	Avg        time.Duration `json:"avg"`         // written as milliseconds with one decimal: 41.5
	Loss       float64       `json:"ping_loss"`   // percent, 0 to 100
	ConfigPath string        `json:"config_path"` // of the profile
}

// ParsePool reads a pool file and returns every row whose meaning is certain and everything
// that is wrong. The header line may be absent. file only names the source in complaints.
func ParsePool(file string, r io.Reader) (rows []PoolRow, damage []DamageError) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, []DamageError{*unreadable(file, err)}
	}
	lines, damage := splitLines(file, data)
	ranks, endpoints := map[int]int{}, map[string]int{}
	for _, l := range lines {
		if l.n == 1 && strings.HasPrefix(l.text, "rank\t") {
			if l.text != poolHeader {
				return nil, sortDamage(append(damage, DamageError{
					File: file, Line: 1, Msg: "other columns than ours",
					Hint: "the columns are: " + strings.ReplaceAll(poolHeader, "\t", " "),
				}))
			}
			continue
		}
		p, err := parsePoolRow(l.text)
		if err == nil {
			if first, twice := ranks[p.Rank]; twice {
				err = fmt.Errorf("rank %d for the second time, first in line %d", p.Rank, first)
			} else if first, twice := endpoints[p.Endpoint]; twice {
				err = fmt.Errorf("endpoint %s for the second time, first in line %d", p.Endpoint, first)
			}
		}
		if err != nil {
			damage = append(damage, DamageError{
				File: file, Line: l.n, Msg: err.Error(), Hint: "refresh the pool, or correct the line or delete it",
			})
			continue
		}
		ranks[p.Rank], endpoints[p.Endpoint] = l.n, l.n
		if !l.torn { // its path may be cut short
			rows = append(rows, p)
		}
	}
	return rows, sortDamage(damage)
}

func parsePoolRow(text string) (PoolRow, error) {
	f, err := splitRow(text, 6)
	if err != nil {
		return PoolRow{}, err
	}
	p := PoolRow{File: f[1], Endpoint: f[2], ConfigPath: f[5]}
	rank, err := parseUint(f[0])
	if err != nil || rank < 1 || rank > math.MaxInt32 {
		return p, fmt.Errorf("rank: bad number %q: want 1 or more", f[0])
	}
	p.Rank = int(rank)
	if err := checkEndpoint(p.Endpoint); err != nil {
		return p, err
	}
	ms, err := parseDecimal(f[3], 600_000)
	if err != nil {
		return p, fmt.Errorf("avg_ms: %w", err)
	}
	p.Avg = time.Duration(math.Round(ms*1000)) * time.Microsecond
	p.Loss, err = parseDecimal(strings.TrimSuffix(f[4], "%"), 100)
	if err != nil {
		return p, fmt.Errorf("ping_loss: %w", err)
	}
	if p.ConfigPath == "" {
		return p, errors.New("config_path: empty")
	}
	return p, nil
}

// parseDecimal reads digits with at most one point: no sign, exponent, NaN or infinity.
func parseDecimal(s string, most float64) (float64, error) {
	if s == "" || strings.Trim(s, "0123456789.") != "" {
		return 0, fmt.Errorf("bad number %q: want a decimal", s)
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("bad number %q: want a decimal", s)
	}
	if v > most {
		return 0, fmt.Errorf("bad number %q: more than %g", s, most)
	}
	return v, nil
}

// plain leaves every byte of a path that is not a control character as it is, UTF-8 or not.
func plain(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := rune(s[i]); c == '\t' || isControl(c) {
			b.WriteRune('\uFFFD')
		} else {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// FormatPool returns a pool file with its header line. A control character in a name or
// path becomes U+FFFD: such a row then names no profile rather than another one.
func FormatPool(rows []PoolRow) []byte {
	var b bytes.Buffer
	b.WriteString(poolHeader + "\n")
	for _, p := range rows {
		b.WriteString(strings.Join([]string{
			strconv.Itoa(p.Rank), plain(p.File), plain(p.Endpoint),
			strconv.FormatFloat(float64(p.Avg)/float64(time.Millisecond), 'f', 1, 64),
			strconv.FormatFloat(p.Loss, 'f', -1, 64), plain(p.ConfigPath),
		}, "\t") + "\n")
	}
	return b.Bytes()
}

// ReadPool returns the rows of an intact pool file and its mtime, the moment its tests
// began, rounded down to the second: so it is never taken for newer than a failure of the
// same second. A damaged file gives no rows and a *DamageError, a missing one an error that
// wraps fs.ErrNotExist.
func ReadPool(path string) ([]PoolRow, time.Time, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, time.Time{}, poolError(path, err)
	}
	defer f.Close()
	fi, err := f.Stat() // of the file that is read, whatever the name leads to by now
	if err != nil {
		return nil, time.Time{}, poolError(path, err)
	}
	mtime := time.Unix(fi.ModTime().Unix(), 0).UTC()
	rows, damage := ParsePool(path, f)
	if len(damage) > 0 {
		return nil, mtime, firstDamage(damage)
	}
	return rows, mtime, nil
}

func poolError(path string, err error) error {
	e := unreadable(path, err)
	if errors.Is(err, fs.ErrNotExist) {
		e.Hint = "make the first pool: shunt egress refresh"
	}
	return e
}
