package knock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
)

// slack is how late the end of the waiting may be noticed on any busy machine.
func slack(limit time.Duration) time.Duration { return max(5*time.Millisecond, limit/20) }

// knocking is one probe under way.
type knocking struct {
	target edge.ProbeTarget
	limit  time.Duration // the cap
	began  time.Time
	end    time.Time            // began and the cap
	lost   func() time.Duration // time in which this process did not run; nil = not watched
	a      edge.Answer
}

func newKnocking(t edge.ProbeTarget) *knocking {
	k := &knocking{target: t, limit: t.Probe.Cap, began: clock(), a: edge.Answer{Key: t.Key}}
	if k.limit <= 0 {
		k.limit = defaultCap
	}
	k.end = k.began.Add(k.limit)
	return k
}

func clock() time.Time { return time.Now() } //nolint:forbidigo // measures durations

// heard notes the time of the answer that the probe asks for.
func (k *knocking) heard() { k.a.RTT = clock().Sub(k.began) }

func (k *knocking) good() {
	k.a.Outcome, k.a.Reason = edge.Good, ""
	k.a.Answers, k.a.Speaks, k.a.Accepts = true, true, true
}

func (k *knocking) miss(reason string) { k.a.Outcome, k.a.Reason = edge.Miss, reason }

func (k *knocking) unknown(reason string) { k.a.Outcome, k.a.Reason = edge.OutcomeUnknown, reason }

// ours says why a silence that was noticed at that time may be our own; "" = it is not.
func (k *knocking) ours(ctx context.Context, noticed time.Time) string {
	over := noticed.Sub(k.end)
	if err := ctx.Err(); err != nil && over < 0 {
		return "given up early: " + err.Error()
	}
	if over > slack(k.limit) {
		return fmt.Sprintf("asked too late: this process ran again %s after the cap", over.Round(time.Millisecond))
	}
	if k.lost == nil {
		return ""
	}
	if lost := k.lost(); lost > k.limit/4 {
		return fmt.Sprintf("asked too late: this process did not run for %s", lost.Round(time.Millisecond))
	}
	return ""
}

// timedOut judges a silence.
func (k *knocking) timedOut(ctx context.Context, what string) {
	if why := k.ours(ctx, clock()); why != "" {
		k.unknown(why)
		return
	}
	k.miss(fmt.Sprintf("%s within %s", what, k.limit))
}

// connectFailed judges a connection that did not come about.
func (k *knocking) connectFailed(ctx context.Context, err error) {
	var local *localError
	switch {
	case errors.As(err, &local):
		k.unknown(local.Error())
	case errors.Is(err, unix.ECONNREFUSED):
		k.miss("connection refused")
		k.a.Refused = true
	case errors.Is(err, os.ErrDeadlineExceeded):
		k.timedOut(ctx, "no connection")
	case errors.Is(err, unix.ECONNRESET):
		k.unknown("reset while connecting")
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.ETIMEDOUT):
		k.miss(errno(err)) // a router's word, or the neighbour's silence
	default:
		k.unknown(clean(err.Error()))
	}
}

// talkFailed judges an exchange that broke off. begun = a byte of an answer had come.
func (k *knocking) talkFailed(ctx context.Context, err error, begun bool) {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		if begun {
			k.timedOut(ctx, "no whole answer")
		} else {
			k.timedOut(ctx, "no answer")
		}
	case closed(err) && !begun:
		k.unknown("closed before an answer")
	case closed(err):
		k.miss("closed in the middle of an answer")
	default:
		k.miss(clean(err.Error()))
	}
}

func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

func errno(err error) string {
	var e unix.Errno
	if errors.As(err, &e) {
		return e.Error()
	}
	return clean(err.Error())
}

// clean makes one short printable line of what others wrote.
func clean(s string) string {
	const most = 120 // characters
	var b strings.Builder
	n, gap := 0, false
	for _, r := range s {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			gap = b.Len() > 0
			continue
		}
		if n == most {
			return b.String() + "…"
		}
		if gap {
			b.WriteByte(' ')
			gap = false
		}
		b.WriteRune(r)
		n++
	}
	return b.String()
}
