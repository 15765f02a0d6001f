package plane

import (
	"fmt"
	"testing"

	"github.com/ti-mo/conntrack"

	"github.com/shunt-net/shunt/internal/egress"
)

// five is the usual router: five lanes, two of which exist in the world.
func five() egress.Config {
	c := config()
	for i, d := range []egress.DSCP{48, 56, 34} {
		c.Lanes = append(c.Lanes, egress.Lane{
			Name: fmt.Sprintf("egress%d", i+3), Interface: fmt.Sprintf("vpn%d", i+3), Table: 203 + i, Mark: egress.Mark(0x203 + i),
			DSCP: []egress.DSCP{d}, NAT: egress.NATMasquerade,
		})
	}
	return c
}

func BenchmarkObserve(b *testing.B) {
	_, p, c := newWorld(b), newPlane(b), five()
	ensure(b, p, c, home(c))
	for b.Loop() {
		if v, err := p.Observe(b.Context(), c); err != nil || !v.Ready {
			b.Fatal(v, err)
		}
	}
}

func BenchmarkEnsureNoChange(b *testing.B) {
	_, p, c := newWorld(b), newPlane(b), five()
	ensure(b, p, c, home(c))
	for b.Loop() {
		if ensure(b, p, c, home(c)) {
			b.Fatal("changed")
		}
	}
}

// The whole table by nft, as after a change of the configuration.
func BenchmarkEnsureLoad(b *testing.B) {
	_, p, c := newWorld(b), newPlane(b), five()
	ensure(b, p, c, home(c))
	for i := 0; b.Loop(); i++ {
		c.Plane.Bypass = prefixes(fmt.Sprintf("198.51.100.%d/32", i%256))
		if !ensure(b, p, c, nil) {
			b.Fatal("not changed")
		}
	}
}

func BenchmarkMove(b *testing.B) {
	_, p, c := newWorld(b), newPlane(b), five()
	ensure(b, p, c, home(c))
	for i := 0; b.Loop(); i++ {
		must(b, p.Move(b.Context(), c, map[string]string{"egress1": c.Lanes[i%2].Name}))
	}
}

func BenchmarkFlush(b *testing.B) {
	for _, others := range []int{0, 5000} {
		b.Run(fmt.Sprintf("10 flows of %d", others+10), func(b *testing.B) {
			_, p, c := newWorld(b), newPlane(b), five()
			conn, err := conntrack.Dial(nil)
			must(b, err)
			defer func() { _ = conn.Close() }()
			fill(b, conn, others, 1000, 0x2202)
			for b.Loop() {
				b.StopTimer()
				fill(b, conn, 10, 1001, 0x1201)
				b.StartTimer()
				if n, err := p.Flush(b.Context(), c, "egress1", "egress1"); n != 10 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

// What each run of a command pays once: opening the sockets, a look, closing them.
func BenchmarkOneRun(b *testing.B) {
	_, p, c := newWorld(b), newPlane(b), five()
	ensure(b, p, c, home(c))
	for b.Loop() {
		q := New()
		if ensure(b, q, c, home(c)) {
			b.Fatal("changed")
		}
		must(b, q.Close())
	}
}
