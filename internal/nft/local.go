package nft

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/run"
)

const (
	readTries = 6 // reads of a table that others' transactions cut into
	// loadTimeout bounds one run of nft, beside the context.
	loadTimeout = 30 * time.Second
	// A batch is one message to the kernel, however long it is, and each of its parts is
	// answered: the socket's buffers have to hold both.
	writeBuffer = 64 << 20 // bytes
	readBuffer  = 8 << 20  // bytes
	// A list of elements is one attribute, whose length has 16 bits.
	maxListed = 48 << 10 // bytes
)

// knownSum is the sum of our rules as nft 1.0.6 codes and Linux 6 lists them. Under other
// versions nft is asked once whether what it prints is right.
const knownSum = 0x6d64112aa218a11a

// Local is this machine's table. Reading and moving elements goes over one lasting netlink
// connection, which is also open when Close has been called: closing such a socket takes
// until the kernel has forgotten what was deleted, so the process' end does it. Making and
// mending the table runs nft.
func Local(o Options) edge.Replicated {
	l := &local{o: o, known: map[uint64]bool{knownSum: true}}
	r := newReplica(o.Name, o, l, l.closed)
	r.local = true
	return r
}

type local struct {
	o     Options
	conn  *nftables.Conn
	raw   *mdnetlink.Conn
	ns    *os.File
	known map[uint64]bool // sums of rules that are right
	last  *memo           // what was seen last; nil = nothing that can be built on
}

// open opens the connection and gives it the context's deadline.
func (l *local) open(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.conn == nil {
		opts := []nftables.ConnOption{nftables.AsLasting(), nftables.WithSockOptions(func(c *mdnetlink.Conn) error {
			l.raw = c
			return errors.Join(c.SetReadBuffer(readBuffer), c.SetWriteBuffer(writeBuffer))
		})}
		if l.o.Namespace != "" && l.ns == nil {
			ns, err := os.Open(l.o.Namespace)
			if err != nil {
				return fmt.Errorf("network namespace: %w", err)
			}
			l.ns = ns
		}
		if l.ns != nil {
			opts = append(opts, nftables.WithNetNSFd(int(l.ns.Fd())))
		}
		conn, err := nftables.New(opts...)
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		l.conn = conn
	}
	at, _ := ctx.Deadline()
	if err := l.raw.SetDeadline(at); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// drop closes the connection: after an error answers may be left in it that belong to no question.
func (l *local) drop() {
	l.last = nil
	if l.conn != nil {
		_ = l.conn.CloseLasting()
	}
	l.conn, l.raw = nil, nil
}

func (l *local) closed() error {
	l.conn, l.raw, l.last = nil, nil, nil
	if l.ns != nil {
		_ = l.ns.Close()
	}
	l.ns = nil
	return nil
}

// snapshot is the table as of one instant.
type snapshot struct {
	bones skeleton
	table edge.Table
	odd   []string
	gen   uint32 // before the read
	whole bool   // … and after it
}

// agrees says whether two reads show the same, but for the time that leases have left.
func (s snapshot) agrees(o snapshot) bool {
	return reflect.DeepEqual(s.bones, o.bones) && slices.Equal(s.odd, o.odd) && s.table.Equal(o.table)
}

// read reads lists of elements (nil = all, and the static part) as of one instant. Others'
// transactions, on whatever table, leave it open whether a read is of one instant; two
// reads that agree will do then. Where there is no quiet moment at all, each list is of one
// instant of its own.
func (l *local) read(ctx context.Context, only []kind) (snapshot, error) {
	var before *snapshot
	for n := range readTries {
		if err := l.open(ctx); err != nil {
			return snapshot{}, err
		}
		s, whole, err := l.readOnce(teller{conn: l.raw, steady: n >= readTries/2}, only)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) && only == nil {
			before = nil // changed in the middle of a listing
			continue
		}
		if err != nil {
			l.drop()
			return s, fmt.Errorf("read: %w", err)
		}
		s.whole = whole
		if whole || before != nil && before.agrees(s) || n == readTries-1 {
			return s, nil
		}
		before = &s
	}
	return snapshot{}, fmt.Errorf("read: nftables was changed by others each of %d times", readTries)
}

// readOnce reads once; whole says that no transaction cut into it.
func (l *local) readOnce(c teller, only []kind) (s snapshot, whole bool, err error) {
	before, err := generation(l.raw)
	if err != nil {
		return s, false, err
	}
	s.gen = before
	s.bones.present = true
	all := only == nil
	there := map[string]bool{}
	if all {
		only = kinds()
		if s.bones, err = readSkeleton(c); err != nil {
			return s, false, err
		}
	}
	for _, line := range s.bones.lines {
		name, _, _ := strings.Cut(line, ":")
		there[name] = true
	}
	for _, k := range only {
		var list []item
		for _, set := range k.sets() {
			if all && !there["set "+set.name] {
				continue
			}
			raw, err := readElements(c, set.name)
			if err != nil {
				return s, false, err
			}
			var odd []string
			for _, e := range raw {
				if i, ok := e.item(set); ok {
					list = append(list, i)
				} else {
					odd = append(odd, hex.EncodeToString(e.key))
				}
			}
			s.odd = append(s.odd, oddText(set, odd)...)
		}
		s.odd = append(s.odd, oddLeases(keep(&s.table, k, list))...)
	}
	after, err := generation(l.raw)
	return s, before == after, err
}

func (l *local) look(ctx context.Context) (found, error) {
	if f, ok := l.glance(ctx); ok {
		return f, nil
	}
	l.last = nil
	at := l.now()
	s, err := l.read(ctx, nil)
	if err != nil || !s.bones.present {
		return found{absent: true}, err
	}
	drift := s.bones.drift()
	if drift == nil && !l.known[s.bones.sum] {
		drift = l.ask(ctx, s.bones.sum)
	}
	f := found{drift: append(drift, s.odd...), table: s.table}
	l.keep(s, f, at)
	return f, nil
}

// ask has nft print the rules, whose coding we do not know, and learns it if they are
// right. Without an answer (no nft here, say) nothing is claimed: the table can still be moved.
func (l *local) ask(ctx context.Context, sum uint64) []string {
	res, err := run.Command(ctx, l.nft("-s", "-t", "list", "table", "inet", tableName), run.Options{Timeout: loadTimeout, MaxOutput: 1 << 20})
	if err != nil {
		return nil
	}
	_, drift, err := ParseListing(string(res.Stdout))
	if err != nil || len(drift) > 0 {
		return drift
	}
	if now, err := readSkeleton(teller{conn: l.raw}); err == nil && now.sum == sum {
		l.known[sum] = true
	}
	return nil
}

func (l *local) nft(args ...string) []string {
	argv := append([]string{"nft"}, args...)
	if l.o.Namespace != "" {
		argv = append([]string{"nsenter", "--net=" + l.o.Namespace}, argv...)
	}
	return argv
}

func (l *local) load(ctx context.Context, want edge.Table) (found, error) {
	l.last = nil
	script := replacement(text(want))
	res, err := run.Command(ctx, l.nft("-f", "-"), run.Options{Stdin: strings.NewReader(script), Timeout: loadTimeout})
	if err != nil {
		return found{}, errors.Join(err, complaint(string(res.Output)))
	}
	run.Point(ctx, "edge.loaded")
	s, err := l.read(ctx, nil)
	if err != nil || !s.bones.present {
		return found{absent: true}, err
	}
	drift := s.bones.drift()
	if drift == nil {
		l.known[s.bones.sum] = true // fresh from our hands
	}
	return found{drift: append(drift, s.odd...), table: s.table}, nil
}

func (l *local) move(ctx context.Context, changes []change) (edge.Table, error) {
	if err := l.open(ctx); err != nil {
		return edge.Table{}, err
	}
	var only []kind
	var errs []error
	for _, c := range changes {
		only = append(only, c.kind)
		for _, s := range c.kind.sets() {
			target := &nftables.Set{
				Table: &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet},
				Name:  s.name, IsMap: s.data != nil, HasTimeout: s.kind == kindLease,
			}
			for _, list := range chunks(s, c.del, true) {
				errs = append(errs, l.conn.SetDeleteElements(target, list))
			}
			for _, list := range chunks(s, c.add, false) {
				errs = append(errs, l.conn.SetAddElements(target, list))
			}
		}
	}
	if err := errors.Join(append(errs, l.conn.Flush())...); err != nil {
		l.drop()
		return edge.Table{}, err
	}
	run.Point(ctx, "edge.moved")
	at := l.now()
	if t, ok := l.readBack(changes, at); ok {
		return t, nil
	}
	s, err := l.read(ctx, only)
	if err != nil {
		l.last = nil
		return s.table, err
	}
	l.moved(s, only, at)
	return s.table, nil
}

// chunks are the elements for one set, in lists that fit a netlink attribute.
func chunks(s set, list []item, bare bool) [][]nftables.SetElement {
	var out [][]nftables.SetElement
	room := 0
	for _, i := range list {
		if i.key.family() != s.family {
			continue
		}
		if bare {
			i = item{key: i.key}
		}
		e := i.wire()
		need := 64 + len(e.Key) + len(e.KeyEnd) + len(e.Val) + len(e.Comment)
		if need > room {
			out, room = append(out, nil), maxListed
		}
		room -= need
		out[len(out)-1] = append(out[len(out)-1], e)
	}
	return out
}
