package state

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
)

// ReadJSON sets what v points to from a file of the folder, for example "egress.json". A
// file that never was leaves the zero value; keys that v does not know are passed over. For
// a damaged file the error is a *DamageError, and v is that of the last good copy, or zero.
func (d *Dir) ReadJSON(name string, v any) error {
	if err := checkJSON(name, v); err != nil {
		return err
	}
	return firstDamage(d.jsonAny(name, v))
}

// UpdateJSON reads the file into v as ReadJSON does, calls change, which alters what v
// points to, and writes v, all under the state lock (at most two seconds of waiting). An
// error of change leaves the file as it was. A damaged file is kept as
// NAME.damaged-SECOND; one that can't be read at all is left alone: an error.
func (d *Dir) UpdateJSON(ctx context.Context, name string, v any, change func() error) error {
	if err := checkJSON(name, v); err != nil {
		return err
	}
	return d.underState(ctx, "update "+name, func() error {
		damage := d.jsonAny(name, v)
		if err := cannotHeal(damage); err != nil {
			return fmt.Errorf("update %s: %w", name, err)
		}
		if err := change(); err != nil {
			return err
		}
		out, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return fmt.Errorf("update %s: %w", name, err)
		}
		if err := setDamagedAside(ctx, damage); err != nil {
			return fmt.Errorf("update %s: %w", name, err)
		}
		return d.save(ctx, name, append(out, '\n'))
	})
}

func checkJSON(name string, v any) error {
	if name == "" || name != filepath.Base(name) || name[0] == '.' {
		return fmt.Errorf("state file %q: want a plain name", name)
	}
	if t := reflect.ValueOf(v); t.Kind() != reflect.Pointer || t.IsNil() {
		return fmt.Errorf("state file %s: want a pointer to read into", name)
	}
	return nil
}

func (d *Dir) jsonAny(name string, v any) []DamageError {
	reflect.ValueOf(v).Elem().SetZero()
	data, found, bad := d.load(name)
	if bad == nil {
		if !found {
			return nil
		}
		if bad = decodeJSON(d.Path(name), data, v); bad == nil {
			return nil
		}
	}
	damage := d.withCopyHint(name, []DamageError{*bad})
	last, err := os.ReadFile(d.lastGood(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		damage = append(damage, *unreadable(d.lastGood(name), err))
	default:
		if worse := decodeJSON(d.lastGood(name), last, v); worse != nil {
			damage = append(damage, *worse)
		}
	}
	return damage
}

// decodeJSON changes v only when all of data is right.
func decodeJSON(file string, data []byte, v any) *DamageError {
	e := &DamageError{File: file, Line: 1, Hint: "correct it, or restore the file from last-good/"}
	switch {
	case len(data) == 0:
		e.Msg = "empty file"
		return e
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		e.Msg = "byte order mark before the first line"
		e.Hint = `remove it: sed -i '1s/^\xEF\xBB\xBF//' ` + file
		return e
	}
	fresh := reflect.New(reflect.TypeOf(v).Elem())
	err := json.Unmarshal(data, fresh.Interface())
	if err == nil {
		reflect.ValueOf(v).Elem().Set(fresh.Elem())
		return nil
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	offset := int64(len(data))
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &kind):
		offset = kind.Offset
	}
	offset = max(0, min(offset, int64(len(data))))
	e.Line = 1 + bytes.Count(data[:max(0, offset-1)], []byte("\n"))
	e.Msg = "not the JSON that belongs here: " + err.Error()
	if errors.As(err, &syntax) && offset == int64(len(data)) {
		e.Msg = "truncated: " + err.Error()
	}
	return e
}
