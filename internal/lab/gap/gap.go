// Package gap measures how long an address is not answered: a client that opens a new
// connection every two milliseconds, on one thread and by one absolute clock, and says of
// each who answered it and when.
package gap

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/lab/cage"
)

// Options describe a client. The zero value of each field stands for its default.
type Options struct {
	To      netip.AddrPort
	Every   time.Duration // between the beginnings of two connections; 0 = 2 ms
	Connect time.Duration // longest that connecting may take; 0 = 200 ms
	Answer  time.Duration // longest from then to the answer; 0 = 1 s
}

// Patient are the options of a client that waits three seconds to be connected, which is
// long enough for its first SYN to be sent twice.
func Patient(to netip.AddrPort) Options { return Options{To: to, Connect: 3 * time.Second} }

func (o Options) full() Options {
	if o.Every == 0 {
		o.Every = 2 * time.Millisecond
	}
	if o.Connect == 0 {
		o.Connect = 200 * time.Millisecond
	}
	if o.Answer == 0 {
		o.Answer = time.Second
	}
	return o
}

// Fault is why a connection was not answered.
type Fault string

// The faults. The zero value is none: it was answered.
const (
	None     Fault = ""
	Refused  Fault = "refused"
	Reset    Fault = "reset"
	Closed   Fault = "closed" // ended in order before an answer
	Timeout  Fault = "timeout"
	NoRoute  Fault = "no route"
	NoSocket Fault = "no socket" // the client's own: it ran out of ports
	Other    Fault = "other"
)

// Conn is what became of one connection.
type Conn struct {
	Start time.Time // just before connecting
	Done  time.Time // when the answer was there, or the fault
	Who   string    // the name that the server wrote; "" = failed
	Fault Fault
}

// Client is a client at work.
type Client struct {
	o    Options
	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex
	conns []Conn
	late  []Stall
	who   string    // who answered the last ones that ended; "" = they failed
	since time.Time // when the first of these ended
	err   error
}

// Stall is a time in which the client itself did not run: what it measured then is the
// machine's figure and nobody else's.
type Stall struct {
	At  time.Time     // when it was to go on
	For time.Duration // how much later it did
}

// stalled is how late a connection may be opened before it counts as a stall.
const stalled = 10 * time.Millisecond

// Start begins to connect from a namespace.
func Start(ctx context.Context, ns *cage.Namespace, o Options) *Client {
	ctx, cancel := context.WithCancel(ctx)
	c := &Client{o: o.full(), stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		err := ns.Do(func() error { return c.loop(ctx) })
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
	}()
	return c
}

// note records a connection that has ended.
func (c *Client) note(x Conn) {
	c.mu.Lock()
	c.conns = append(c.conns, x)
	if x.Who != c.who || c.since.IsZero() {
		c.who, c.since = x.Who, x.Done
	}
	c.mu.Unlock()
}

func (c *Client) stall(s Stall) {
	c.mu.Lock()
	c.late = append(c.late, s)
	c.mu.Unlock()
}

// Err is why the client ended by itself, if it did.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Steady is who answers now, and since when every connection that ended was answered by
// that server; "" = the last one failed.
func (c *Client) Steady() (who string, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.who, c.since
}

// Anyone accepts every server.
func Anyone(string) bool { return true }

// Only accepts one server.
func Only(name string) func(string) bool { return func(who string) bool { return who == name } }

// Not accepts every server but one.
func Not(name string) func(string) bool { return func(who string) bool { return who != name } }

// WaitSteady waits until one server that is accepted has answered everything for a time,
// and returns its name.
func (c *Client) WaitSteady(ctx context.Context, d time.Duration, accept func(who string) bool) (string, error) {
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for {
		who, since := c.Steady()
		if who != "" && accept(who) && time.Since(since) >= d {
			return who, nil
		}
		select {
		case <-ctx.Done():
			return who, fmt.Errorf("nobody who should answers %s for %s at a time (now %q): %w", c.o.To, d, who, context.Cause(ctx))
		case <-c.done:
			return who, fmt.Errorf("client of %s ended: %w", c.o.To, c.Err())
		case <-t.C:
		}
	}
}

// Stop opens no more connections, waits for those that are under way, and returns all, by
// their beginnings.
func (c *Client) Stop() Result {
	c.stop()
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	r := Result{Conns: slices.Clone(c.conns), Stalls: slices.Clone(c.late), Err: c.err}
	slices.SortFunc(r.Conns, func(a, b Conn) int { return a.Start.Compare(b.Start) })
	return r
}

// Result is all that a client saw.
type Result struct {
	Conns  []Conn
	Stalls []Stall
	Err    error // the client itself failed
}

// Gap is what a death looked like to new connections.
type Gap struct {
	Gap      time.Duration // from the death to the first answer of the survivor; below 0 = there was none
	LastFail time.Duration // from the death to the beginning of the last failed connection
	Failed   int           // connections that ended after the death without an answer
	Slow     int           // answered, but after more than 100 ms
	Slowest  time.Duration // of the answered ones that ended after the death
	Faults   map[Fault]int
	Stall    time.Duration // the client's own longest stall in the gap
}

// slow is an answer's time that people begin to notice.
const slow = 100 * time.Millisecond

// After looks at a death: at is the time just before it, survivors are those who may
// answer after it.
func (r Result) After(at time.Time, survivors ...string) Gap {
	g := Gap{Gap: -1, Faults: map[Fault]int{}}
	for _, x := range r.Conns {
		if !x.Done.After(at) {
			continue
		}
		switch {
		case x.Who == "":
			g.Failed++
			g.Faults[x.Fault]++
			g.LastFail = max(g.LastFail, x.Start.Sub(at))
		case slices.Contains(survivors, x.Who):
			took := x.Done.Sub(x.Start)
			g.Slowest = max(g.Slowest, took)
			if took > slow {
				g.Slow++
			}
			if d := x.Done.Sub(at); g.Gap < 0 || d < g.Gap {
				g.Gap = d
			}
		}
	}
	end := at.Add(max(g.Gap, 0))
	for _, s := range r.Stalls {
		if s.At.Before(end) && s.At.Add(s.For).After(at) {
			g.Stall = max(g.Stall, s.For)
		}
	}
	return g
}

// By counts the connections that each server answered of those that began from a time on;
// "" are the failed ones.
func (r Result) By(from time.Time) map[string]int {
	n := map[string]int{}
	for _, x := range r.Conns {
		if !x.Start.Before(from) {
			n[x.Who]++
		}
	}
	return n
}

// Silence is the longest time between two answers from a time on, and when it began.
func (r Result) Silence(from time.Time) (time.Duration, time.Time) {
	done := []time.Time{from}
	for _, x := range r.Conns {
		if x.Who != "" && x.Done.After(from) {
			done = append(done, x.Done)
		}
	}
	slices.SortFunc(done, func(a, b time.Time) int { return cmp.Compare(a.UnixNano(), b.UnixNano()) })
	var most time.Duration
	at := from
	for i := 1; i < len(done); i++ {
		if d := done[i].Sub(done[i-1]); d > most {
			most, at = d, done[i-1]
		}
	}
	return most, at
}
