package tripwire

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestConfirm(t *testing.T) {
	w := newWorld(t)
	w.start(t, false, "holds", far4+":8101")
	w.start(t, false, "speaks", far4+":8102")
	w.start(t, false, "closes", far4+":8103")
	w.start(t, false, "speaks", "["+far6+"]:8104")
	w.rule(t, "ip daddr 10.80.2.1 reject with icmp type host-unreachable")
	w.rule(t, "ip daddr 10.80.2.2 reject with icmp type net-unreachable")
	w.rule(t, "ip daddr 10.80.2.3 drop")
	w.rule(t, "ip daddr 10.80.2.4 reject with tcp reset")
	tests := map[string]struct {
		host string
		port int
		want Verdict
	}{
		"nobody listens":                  {far4, 8100, Verdict{Word: WordDead, Reason: "connection refused", Refused: true, Tries: 1}},
		"nobody listens, IPv6":            {far6, 8100, Verdict{Word: WordDead, Reason: "connection refused", Refused: true, Tries: 1}},
		"it keeps the connection":         {far4, 8101, Verdict{Word: WordAlive, Reason: "accepts connections", Tries: 1}},
		"it speaks":                       {far4, 8102, Verdict{Word: WordAlive, Reason: "it speaks", Tries: 1}},
		"it speaks, IPv6":                 {far6, 8104, Verdict{Word: WordAlive, Reason: "it speaks", Tries: 1}},
		"it closes what it accepts":       {far4, 8103, Verdict{Word: WordAlive, Reason: "closed at once", Tries: 6}},
		"a router says the host is gone":  {"10.80.2.1", 8100, Verdict{Word: WordDead, Reason: "host unreachable", Refused: true, Tries: 1}},
		"a router says the net is gone":   {"10.80.2.2", 8100, Verdict{Word: WordDead, Reason: "network unreachable", Refused: true, Tries: 1}},
		"nothing answers":                 {"10.80.2.3", 8100, Verdict{Reason: "no answer", Tries: 2}},
		"a firewall resets":               {"10.80.2.4", 8100, Verdict{Word: WordDead, Reason: "connection refused", Refused: true, Tries: 1}},
		"no way there from this machine":  {"192.0.2.1", 8100, Verdict{Reason: "connect: network is unreachable", Tries: 2}},
		"no way there, IPv6":              {"2001:db8::1", 8100, Verdict{Reason: "connect: network is unreachable", Tries: 2}},
		"an address that nobody can have": {"0.0.0.0", 8100, Verdict{Word: WordDead, Reason: "connection refused", Refused: true, Tries: 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := Confirm(t.Context(), addrPort(tt.host, tt.port), ConfirmOptions{Burst: 120 * time.Millisecond})
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Verdict{}, "Took")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got.Took > 5*time.Second {
				t.Errorf("it took %v", got.Took)
			}
		})
	}
}

func TestConfirmTakesAFewConnectionsOnly(t *testing.T) {
	w := newWorld(t)
	srv := w.start(t, false, "closes", far4+":8111")
	if v := Confirm(t.Context(), addrPort(far4, 8111), ConfirmOptions{Most: 2}); v.Word != WordAlive || v.Tries != 2 {
		t.Errorf("verdict %+v", v)
	}
	if n := srv.count("accepted"); n > 2 {
		t.Errorf("%d connections", n)
	}
}

// Case: a proxy that counts connections closes the fourth one of an address within four seconds.
func TestThrottlingServerIsNoDeath(t *testing.T) {
	w := newWorld(t)
	addr := addrPort(far4, 8112)
	srv := w.start(t, false, "throttles", addr.String())
	s := newSet(t, Options{})
	s.Arm(targets(addr))
	becomes(t, s, addr, StateArmed)
	for range 4 { // one of the set and two of these are kept, the rest is closed
		if v := Confirm(t.Context(), addr, ConfirmOptions{}); v.Word != WordAlive {
			t.Errorf("verdict %+v", v)
		}
	}
	if n := srv.count("accepted"); n < 4 || n > 1+2+2*6 {
		t.Errorf("%d connections", n)
	}
	if hints := pendingHints(s); len(hints) > 0 {
		t.Errorf("hints %+v", hints)
	}
}

// A server that closes its listening socket while a connection of the burst stands.
func TestConfirmFollowsADeathThatComesLater(t *testing.T) {
	w := newWorld(t)
	addr := addrPort(far4, 8113)
	srv := w.start(t, false, "holds", addr.String())
	got := make(chan Verdict)
	go func() { got <- Confirm(context.Background(), addr, ConfirmOptions{Burst: 5 * time.Second}) }()
	srv.await("accepted")
	srv.shoot()
	v := <-got
	if v.Word != WordDead || v.Tries < 2 {
		t.Errorf("verdict %+v", v)
	}
	t.Logf("%d connections", v.Tries)
}

func TestConfirmEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	w.start(t, false, "holds", far4+":8114")
	w.rule(t, "ip daddr 10.80.2.9 drop")
	for name, addr := range map[string]string{"while a connection stands": far4, "while nothing answers": "10.80.2.9"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			v := Confirm(ctx, addrPort(addr, 8114), ConfirmOptions{Burst: time.Minute})
			if v.Word != WordUnknown || v.Reason != context.DeadlineExceeded.Error() || v.Took > 20*time.Second {
				t.Errorf("verdict %+v", v)
			}
		})
	}
}
