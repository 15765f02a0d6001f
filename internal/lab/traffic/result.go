package traffic

import (
	"net/netip"
	"slices"
	"time"
)

// Result is the record of a UDP flow.
type Result struct {
	Packets    []Packet      // in the order of sending
	Errors     int           // writes that the kernel refused; these packets count as lost
	Duplicates int           // answers that came twice
	Reordered  int           // answers that came after a later one's
	Late       time.Duration // the most that the sender itself was behind its schedule
}

// Between is the part of the record that was sent from a (inclusive) to b (exclusive); a
// zero time is no limit.
func (r Result) Between(a, b time.Time) Result {
	out := Result{Late: r.Late}
	for _, p := range r.Packets {
		if (a.IsZero() || !p.Sent.Before(a)) && (b.IsZero() || p.Sent.Before(b)) {
			out.Packets = append(out.Packets, p)
		}
	}
	return out
}

// Sent is the number of packets.
func (r Result) Sent() int { return len(r.Packets) }

// Lost is the number of packets without an answer.
func (r Result) Lost() int {
	n := 0
	for _, p := range r.Packets {
		if p.Got.IsZero() {
			n++
		}
	}
	return n
}

// Silence is the longest time between two answers that followed each other, and when it
// began. It is zero with fewer than two answers.
func (r Result) Silence() (time.Duration, time.Time) {
	var got []time.Time
	for _, p := range r.Packets {
		if !p.Got.IsZero() {
			got = append(got, p.Got)
		}
	}
	slices.SortFunc(got, time.Time.Compare)
	var most time.Duration
	var at time.Time
	for i := 1; i < len(got); i++ {
		if d := got[i].Sub(got[i-1]); d > most {
			most, at = d, got[i-1]
		}
	}
	return most, at
}

// Exits are the exits that answers came through, in the order of their first packet.
func (r Result) Exits() []netip.Addr {
	var out []netip.Addr
	for _, p := range r.Packets {
		if p.Exit.IsValid() && !slices.Contains(out, p.Exit) {
			out = append(out, p.Exit)
		}
	}
	return out
}

// Via counts the answers by exit.
func (r Result) Via() map[netip.Addr]int {
	out := map[netip.Addr]int{}
	for _, p := range r.Packets {
		if p.Exit.IsValid() {
			out[p.Exit]++
		}
	}
	return out
}

// FirstVia is the first packet, sent after that time, that was answered through the exit.
func (r Result) FirstVia(exit netip.Addr, after time.Time) (Packet, bool) {
	for _, p := range r.Packets {
		if p.Exit == exit && p.Sent.After(after) {
			return p, true
		}
	}
	return Packet{}, false
}

// RTTs are the round trips of answered packets.
func (r Result) RTTs() []time.Duration {
	var out []time.Duration
	for _, p := range r.Packets {
		if !p.Got.IsZero() {
			out = append(out, p.RTT())
		}
	}
	return out
}
