package tripwire

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/run"
)

// Word is what a burst found. Unknown is not dead.
type Word string

// The words. The zero value is unknown: nothing came back, or ctx ended.
const (
	WordUnknown Word = ""
	WordAlive   Word = "alive"
	WordDead    Word = "dead"
)

// Verdict is what Confirm found.
type Verdict struct {
	Word    Word
	Reason  string
	Refused bool          // the host, or a router before it, said that nobody is there
	Tries   int           // connections that were begun
	Took    time.Duration // from the call to the word
}

// ConfirmOptions of a burst. The zero value is useful.
type ConfirmOptions struct {
	Burst time.Duration // how long a candidate has to prove itself dead; 0 = 250ms
	Most  int           // connections at most; 0 = as many as the burst has, 6
	// Greeting is written on each connection that comes about; "" = nothing.
	Greeting string
}

// The beginnings of a burst's connections as parts of the whole, 0, 0, 2, 4 and 8 ms of
// 250 ms, and one before its end. Each but the first follows only when the one before it was
// closed: the second at once, for a dying server's listener is mostly gone when it has reset
// what waited there.
const burstUnit = 250

func burstSlots() [6]time.Duration { return [6]time.Duration{0, 0, 2, 4, 8, burstUnit * 9 / 10} }

// unanswered is how many connections may go without any answer to their first packet:
// one more than one, because packets are lost.
const unanswered = 2

// Confirm asks whether a server is dead after a hint. A process that dies closes its
// connections before its listening socket, so one connection that comes about proves
// nothing: it is held, and when it is reset or closed the next one is begun. Dead is who
// refuses, or cannot be reached; alive is who says something, or stands when the burst is over.
// With nothing but silence the word is unknown. A server that closes what it accepts, as
// one does that counts connections, is not dead for it and gets no more than Most.
func Confirm(ctx context.Context, addr netip.AddrPort, o ConfirmOptions) Verdict {
	if o.Burst <= 0 {
		o.Burst = 250 * time.Millisecond
	}
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	begin := clock()
	v := burst(ctx, addr, o, begin)
	v.Took = clock().Sub(begin)
	return v
}

func burst(ctx context.Context, addr netip.AddrPort, o ConfirmOptions, began time.Time) Verdict {
	end := began.Add(o.Burst)
	all := burstSlots()
	slots := all[:]
	if o.Most > 0 && o.Most < len(slots) {
		slots = append(slots[:o.Most-1:o.Most-1], slots[len(slots)-1])
	}
	var last finding
	silent := 0
	v := Verdict{}
	for _, slot := range slots {
		if run.Pause(ctx, began.Add(slot*o.Burst/burstUnit).Sub(clock())) != nil || silent == unanswered {
			break
		}
		v.Tries++
		now := clock()
		patience := end
		if half := began.Add(o.Burst / 2); silent == 0 && now.Before(half) {
			patience = half
		}
		// On a machine that is late, each still gets a moment.
		least := now.Add(o.Burst / 10)
		last = ask(ctx, addr, o.Greeting, later(patience, least), later(end, least))
		switch last.what {
		case foundRefused:
			return Verdict{Word: WordDead, Reason: last.reason, Refused: true, Tries: v.Tries}
		case foundAnswer, foundOpen:
			if ctx.Err() == nil {
				return Verdict{Word: WordAlive, Reason: last.reason, Tries: v.Tries}
			}
		case foundNothing:
			silent++
		case foundClosed:
		}
	}
	if last.what == foundClosed { // somebody accepted, to the last
		v.Word = WordAlive
	}
	v.Reason = last.reason
	if err := ctx.Err(); err != nil {
		v.Word, v.Reason = WordUnknown, err.Error()
	}
	return v
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// finding is what one connection of a burst came to.
type finding struct {
	what   what
	reason string
}

type what int

const (
	foundNothing what = iota // no answer to the first packet, or an error of this machine
	foundRefused
	foundClosed // it came about and was closed or reset
	foundOpen   // it stood when the burst was over
	foundAnswer // the server said something
)

// ask makes one connection, which may take until patience to come about, and holds it
// until something is known or the burst is over.
func ask(ctx context.Context, addr netip.AddrPort, greeting string, patience, end time.Time) finding {
	fd, err := socket(addr)
	if err != nil {
		return finding{foundNothing, err.Error()}
	}
	if err := begin(fd, addr); err != nil {
		_ = unix.Close(fd)
		if errors.Is(err, unix.ECONNREFUSED) {
			return finding{foundRefused, "connection refused"}
		}
		return finding{foundNothing, err.Error()} // a route that is missing here says nothing of it
	}
	// Nearly always the other host on a fast network has answered by now, and no poller is needed.
	if f, known := refusal(pending(fd)); known {
		_ = unix.Close(fd)
		return f
	}
	file := os.NewFile(uintptr(fd), "confirm")
	defer file.Close()
	if err := errors.Join(file.SetWriteDeadline(patience), file.SetReadDeadline(end)); err != nil {
		return finding{foundNothing, fmt.Sprintf("deadline: %v", err)}
	}
	stop := context.AfterFunc(ctx, func() { _ = file.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := file.SyscallConn()
	if err != nil {
		return finding{foundNothing, err.Error()}
	}
	return hold(raw, greeting)
}

// hold waits for the connection to come about, and then for its end or for a word.
func hold(raw syscall.RawConn, greeting string) finding {
	f := finding{foundNothing, "no answer"}
	err := raw.Write(func(fd uintptr) bool {
		err := pending(int(fd))
		if errors.Is(err, errPending) {
			return false
		}
		if err == nil {
			f = finding{foundOpen, "accepts connections"}
			if greeting != "" {
				_, _ = unix.Write(int(fd), []byte(greeting)) // who has closed by now is heard below
			}
		} else {
			f, _ = refusal(err)
		}
		return true
	})
	if err != nil || f.what != foundOpen {
		return f
	}
	var buf [512]byte
	_ = raw.Read(func(fd uintptr) bool { // an error is the burst's end
		n, _, err := unix.Recvfrom(int(fd), buf[:], 0)
		switch {
		case n > 0:
			f = finding{foundAnswer, "it speaks"}
		case err == nil:
			f = finding{foundClosed, "closed at once"}
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			return false
		default:
			f = finding{foundClosed, "reset at once"}
		}
		return true
	})
	return f
}

// refusal reads the error of a connection that did not come about. It came from the network: what
// this machine itself can't do fails in the call.
func refusal(err error) (f finding, known bool) {
	switch {
	case err == nil, errors.Is(err, errPending):
		return finding{}, false
	case errors.Is(err, unix.ECONNREFUSED):
		return finding{foundRefused, "connection refused"}, true
	case errors.Is(err, unix.EHOSTUNREACH):
		return finding{foundRefused, "host unreachable"}, true
	case errors.Is(err, unix.ENETUNREACH):
		return finding{foundRefused, "network unreachable"}, true
	case errors.Is(err, unix.ECONNRESET):
		return finding{foundClosed, "reset while connecting"}, true
	default:
		return finding{foundNothing, err.Error()}, true
	}
}
