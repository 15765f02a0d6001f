package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shunt-net/shunt/internal/run"
)

// program is a command that reads an alert as one line of JSON.
type program []string

func (p program) send(ctx context.Context, m message) error {
	body, err := m.encode()
	if err != nil {
		return err
	}
	// The context bounds it; what it prints may hold its own secrets and is not looked at.
	_, err = run.Command(ctx, p, run.Options{Stdin: bytes.NewReader(body), Timeout: time.Hour, Grace: 250 * time.Millisecond})
	var exit *run.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit):
		return fmt.Errorf("command %s: exit status %d", p[0], exit.Code)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("command %s: did not end in time", p[0])
	}
	return err
}
