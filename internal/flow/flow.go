// Package flow deletes conntrack entries of this machine: those that keep traffic of an
// address on a candidate that is dead.
//
// The kernel itself picks IPv4 entries where it can (CTA_FILTER with a deletion, since Linux
// 6.11; older kernels refuse such a request as a whole). Otherwise, and always for IPv6,
// whose addresses the kernel's filter gets wrong, the entries are listed, compared here and
// deleted one by one, until a listing shows none.
package flow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/run"
)

const (
	// deadline bounds a call whose context has none nearer.
	deadline = 10 * time.Second
	// tries bounds how often entries are deleted that came up meanwhile.
	tries = 5
	// walks is how many times the kernel may be asked to walk its table in one call before
	// fewer, longer listings are cheaper: a walk costs up to 5 ms when the table is empty
	// and about 50 ms at 100,000 entries.
	walks = 8
)

// Flows implements edge.Flows. It keeps one netlink socket for all calls: closing one right
// after a change of nftables waits for the kernel to tidy up. The socket belongs to the
// network namespace of the first call.
type Flows struct {
	mu      sync.Mutex
	socket  *socket
	listing bool // the kernel refused to delete by a filter
}

// New returns a Flows that has not opened its socket yet.
func New() *Flows { return &Flows{} }

// Flush deletes the entries of each element of list and reports how many there were; -1
// when the kernel picked them, for it does not count. An entry is in scope when its original
// destination is From, its answers come from To (port 0: from any port of that address) or,
// with Untrans, from From itself, and, with Pending, nothing was ever answered: a TCP
// connection that waits for its SYN-ACK, a UDP flow without a reply. Nothing else is
// touched. Move the traffic first: a busy flow comes up again with its next packet. What a
// packet on its way past the move brought up is deleted too, by a second look at once.
func (f *Flows) Flush(ctx context.Context, list []edge.Flush) (int, error) {
	jobs, err := plan(list, walks)
	if err != nil || len(jobs) == 0 {
		return 0, err
	}
	n, picked := 0, false
	err = f.with(ctx, func(ctx context.Context) error {
		var rest []job
		for range 2 {
			rest = rest[:0]
			for _, j := range jobs {
				done, err := f.pick(ctx, j)
				if err != nil {
					return err
				}
				if !done {
					rest = append(rest, j)
				}
			}
		}
		picked = len(rest) < len(jobs)
		for _, j := range rest {
			found, err := f.empty(ctx, j)
			n += found
			if err != nil {
				return err
			}
		}
		return nil
	})
	if picked {
		n = -1
	}
	return n, err
}

// Count says how many entries Flush would delete now.
func (f *Flows) Count(ctx context.Context, list []edge.Flush) (int, error) {
	jobs, err := plan(list, walks)
	if err != nil || len(jobs) == 0 {
		return 0, err
	}
	n := 0
	err = f.with(ctx, func(context.Context) error {
		for _, j := range jobs {
			found, err := f.list(j)
			if err != nil {
				return err
			}
			n += len(found)
		}
		return nil
	})
	return n, err
}

// Close closes the socket. A later call opens another one.
func (f *Flows) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.drop()
}

func (f *Flows) drop() error {
	s := f.socket
	f.socket = nil
	if s == nil {
		return nil
	}
	return s.close()
}

// with calls do with an open socket whose waiting ends with ctx. After an error the socket
// is given up: what comes in later belongs to no request.
func (f *Flows) with(ctx context.Context, do func(context.Context) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	if f.socket == nil {
		s, err := open()
		if err != nil {
			return fmt.Errorf("conntrack: %w", err)
		}
		f.socket = s
	}
	s := f.socket
	stop := context.AfterFunc(ctx, func() { _ = s.until(time.Unix(1, 0)) })
	err := do(ctx)
	if !stop() || err != nil && !errors.Is(err, errLeft) {
		_ = f.drop()
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	return nil
}

// pick lets the kernel delete what one job is about; done is false where it can't.
func (f *Flows) pick(ctx context.Context, j job) (done bool, err error) {
	if f.listing || len(j.scopes) != 1 || j.family != unix.AF_INET {
		return false, nil
	}
	err = f.socket.do(request{kind: msgDelete, flags: unix.NLM_F_ACK, family: j.family, attrs: j.filter()}, nil)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		f.listing = true
		return false, nil
	case err != nil:
		return false, fmt.Errorf("delete entries of %s: %w", j.scopes[0], err)
	}
	run.Point(ctx, "edge.flush")
	return true, nil
}

// errLeft says that the kernel did all it was told, and it was not enough.
var errLeft = errors.New("came up again")

// empty deletes one by one what is in scope, until a listing shows none.
func (f *Flows) empty(ctx context.Context, j job) (int, error) {
	n := 0
	for range tries {
		found, err := f.list(j)
		if err != nil || len(found) == 0 {
			return n, err
		}
		gone, err := f.remove(j, found)
		n += gone
		if err != nil {
			return n, err
		}
		run.Point(ctx, "edge.flush")
	}
	left, err := f.list(j)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("entries of %s: %d %w after %d rounds", j.scopes[left[0].scope], len(left), errLeft, tries)
	}
	return n, err
}

// remove deletes entries, except those that are no longer the ones that were listed.
func (f *Flows) remove(j job, found []entry) (int, error) {
	list := make([]request, len(found))
	for i, e := range found {
		list[i] = request{kind: msgDelete, family: e.family, attrs: e.key()}
	}
	n := len(found)
	err := f.socket.all(list, func(i int, errno unix.Errno) error {
		n--
		if errno == unix.ENOENT {
			return nil
		}
		return fmt.Errorf("delete an entry of %s: %w", j.scopes[found[i].scope], errno)
	})
	return max(n, 0), err
}

// list returns the entries that are in scope of a job.
func (f *Flows) list(j job) ([]entry, error) {
	var found []entry
	err := f.socket.do(request{kind: msgGet, flags: unix.NLM_F_DUMP, family: j.family, attrs: j.filter()}, func(b []byte) error {
		e, err := decode(b)
		if err != nil {
			return err
		}
		// The kernel may know no filters at all: each entry is compared here again.
		if i, ok := j.match(e); ok {
			e.scope = i
			found = append(found, e.own())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list entries: %w", err)
	}
	return found, nil
}
