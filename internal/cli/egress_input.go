package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/state"
)

// maxInput bounds a recorded input, bytes.
const maxInput = 256 << 20

// record saves an input without secrets: addresses lose user, password and query, commands
// their arguments. Keys were never in it.
func (a *app) record(ctx context.Context, path string, in egress.Input) error {
	in.Config.Sources = append([]egress.Source{}, in.Config.Sources...)
	for i := range in.Config.Sources {
		s := &in.Config.Sources[i]
		s.URL = redactURL(s.URL)
		s.Addresses = nil // they identify an account
		if len(s.Command) > 1 {
			s.Command = []string{s.Command[0], "(hidden)"}
		}
	}
	return writeInput(ctx, path, in)
}

// writeInput writes an input that holds no secret.
func writeInput(ctx context.Context, path string, in any) error {
	b, err := json.MarshalIndent(in, "", " ")
	if err != nil {
		return fmt.Errorf("recording the input: %w", err)
	}
	if err := state.WriteFile(ctx, path, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("recording the input: %w", err)
	}
	return nil
}

func redactURL(s string) string {
	if s == "" {
		return ""
	}
	u, err := url.Parse(s)
	if err != nil {
		return "(hidden)"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// readInput reads a recorded input; a fault of it is a bad configuration, with its line.
func readInput[T any](path string) (T, error) {
	var in T
	bad := func(err error, hint string) (T, error) {
		return in, &exitError{Code: exitConfig, Err: err, Hint: hint}
	}
	f, err := os.Open(path)
	if err != nil {
		return bad(fmt.Errorf("recorded input: %w", err), "a run with --record-input FILE writes one")
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxInput+1))
	if err != nil || len(b) > maxInput {
		return bad(fmt.Errorf("recorded input %s can't be read, or is over %d MiB", path, maxInput>>20), "")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		at := offset(err, dec)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			at = int64(len(b))
		}
		line := 1 + bytes.Count(b[:min(at, int64(len(b)))], []byte("\n"))
		return bad(fmt.Errorf("%s:%d: recorded input: %w", path, line, err), "--record-input writes such a file; was it cut or edited?")
	}
	return in, nil
}

func offset(err error, dec *json.Decoder) int64 {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return syntax.Offset
	case errors.As(err, &typ):
		return typ.Offset
	}
	return dec.InputOffset()
}
