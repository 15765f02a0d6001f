package notify

import (
	"context"
	"errors"
	"io"
	"log"

	"github.com/nicholas-fedor/shoutrrr/pkg/router"

	"github.com/shunt-net/shunt/internal/edge"
)

// overdue is how many deliveries may still run in the library after we stopped waiting: it
// takes no context.
const overdue = 4

// service tells a notification service, whose kind is the scheme of its URL.
type service struct {
	target edge.AlertTarget
	places chan struct{}
}

func newService(t edge.AlertTarget) *service {
	return &service{t, make(chan struct{}, overdue)}
}

func (s *service) send(ctx context.Context, m message) error {
	to, err := address(s.target)
	if err != nil {
		return err
	}
	select {
	case s.places <- struct{}{}:
	case <-ctx.Done():
		return explain(ctx.Err())
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-s.places }()
		done <- hand(to, m.text())
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return explain(ctx.Err())
	}
}

// hand gives a text to the library. A fault of the library is no end of ours.
func hand(to, text string) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the notification library failed")
		}
	}()
	r, err := router.New(log.New(io.Discard, "", 0))
	if err != nil {
		return errors.New("the notification library failed")
	}
	one, err := r.Locate(to)
	switch {
	case errors.Is(err, router.ErrUnknownService):
		return errors.New("its url names no known notification service")
	case err != nil:
		return errors.New("its url is not understood")
	}
	if err := one.Send(text, nil); err != nil {
		return explain(err)
	}
	return nil
}
