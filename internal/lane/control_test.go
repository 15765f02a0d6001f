package lane

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/amnezia"
)

// slowWay answers when it is let.
type slowWay struct {
	asked, answer chan struct{}
	sets          int
}

func (w *slowWay) device(string) (*wgtypes.Device, amnezia.Params, error) {
	w.asked <- struct{}{}
	<-w.answer
	return &wgtypes.Device{}, amnezia.Params{}, nil
}

func (w *slowWay) configure(string, wgtypes.Config, amnezia.Params) error {
	w.sets++
	return nil
}

func (w *slowWay) close() {}

// A run that is ended while it waits for a device's answer has to put things back by that
// device: only one that never answers is given up.
func TestADeviceThatIsSlowCanStillBeSetAfterTheRunWasEnded(t *testing.T) {
	w := &slowWay{asked: make(chan struct{}), answer: make(chan struct{})}
	v := &control{name: "vpn1", way: w, limit: time.Minute}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-w.asked
		cancel()
		close(w.answer)
	}()
	if _, err := v.read(ctx); err != nil {
		t.Errorf("an answer that came was thrown away: %v", err)
	}
	if err := v.set(ctx, wgtypes.Config{}); !errors.Is(err, context.Canceled) || w.sets != 0 {
		t.Errorf("error %v, %d sets: nothing begins after the end", err, w.sets)
	}
	back, end := detached(ctx)
	defer end()
	if err := v.set(back, wgtypes.Config{}); err != nil || w.sets != 1 {
		t.Errorf("error %v, %d sets: things could not be put back", err, w.sets)
	}
}

func TestADeviceThatNeverAnswersIsGivenUp(t *testing.T) {
	w := &slowWay{asked: make(chan struct{}, 1), answer: make(chan struct{})}
	defer close(w.answer)
	v := &control{name: "vpn1", way: w, limit: time.Millisecond}
	if _, err := v.read(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if err := v.set(t.Context(), wgtypes.Config{}); err == nil || w.sets != 0 {
		t.Errorf("error %v, %d sets: the call that hangs may still come", err, w.sets)
	}
}
