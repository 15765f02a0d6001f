package knock

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/run"
)

// killGrace is the part of the cap between TERM and KILL.
func killGrace(limit time.Duration) time.Duration {
	return min(max(limit/20, time.Millisecond), 20*time.Millisecond, limit/2)
}

// exec runs the probe's command: status 0 is good, another a miss. The whole process group
// gets TERM a little before the cap and KILL at it. A command that does not start, or that a
// signal of another ended, says nothing of the candidate.
func (k *knocking) exec(ctx context.Context) {
	host := k.target.Addr.Addr().Unmap().String()
	fill := strings.NewReplacer("{address}", host, "{port}", strconv.Itoa(int(k.target.Addr.Port())), "{candidate}", k.target.Candidate)
	argv := make([]string, len(k.target.Probe.Command))
	for i, a := range k.target.Probe.Command {
		argv[i] = fill.Replace(a)
	}
	grace := killGrace(k.limit)
	bound, cancel := context.WithDeadline(ctx, k.end.Add(-grace))
	defer cancel()
	noticed := make(chan time.Time, 1)
	context.AfterFunc(bound, func() { noticed <- clock() })

	_, err := run.Command(bound, argv, run.Options{Timeout: k.limit, Grace: grace, MaxOutput: 4 << 10})
	var exit *run.ExitError
	switch {
	case err == nil:
		k.heard()
		k.good()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		if why := k.ours(ctx, (<-noticed).Add(grace)); why != "" {
			k.unknown(why)
			return
		}
		k.miss("no end within " + k.limit.String())
	case !errors.As(err, &exit):
		k.unknown(clean(err.Error()))
	case exit.Code > 128 && exit.Code <= 128+64:
		k.unknown("ended by signal " + strconv.Itoa(exit.Code-128))
	default:
		reason := "status " + strconv.Itoa(exit.Code)
		if exit.Last != "" {
			reason += ": " + exit.Last
		}
		k.miss(clean(reason))
	}
}
