package tripwire

import "testing"

// A server that dies while its connection is made anew is heard of: by the refusal of the
// new one, or by the kernel's word where it listened on this machine.
func TestADeathWhileConnectionsAreMadeAnewIsHintedAt(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		name  string
		local bool
		addr  string
		state State
		kind  Kind
	}{
		{"on another host", false, far4, StateArmed, KindRefused},
		{"on this machine", true, "10.79.0.1", StateLocal, KindListener},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr := addrPort(tt.addr, 8051)
			srv := w.start(t, tt.local, "holds", addr.String())
			s := newSet(t, Options{})
			s.Arm(targets(addr))
			becomes(t, s, addr, tt.state)
			s.mu.Lock() // nothing is served meanwhile
			srv.kill()
			s.renew()
			s.sweep()
			s.ring()
			s.mu.Unlock()
			if h := next(t, s); h.Addr != addr || h.Kind != tt.kind || h.Expected {
				t.Errorf("hint %+v, want kind %s", h, tt.kind)
			}
		})
	}
}

func TestConnectionsThatAreMadeAnewStandAgainWithoutAHint(t *testing.T) {
	w := newWorld(t)
	far, here := addrPort(far4, 8052), addrPort("10.79.0.1", 8053)
	srv := w.start(t, false, "holds", far.String())
	w.start(t, true, "holds", here.String())
	s := newSet(t, Options{})
	s.Arm(targets(far, here))
	becomes(t, s, far, StateArmed)
	becomes(t, s, here, StateLocal)
	for n := range 3 {
		s.Renew()
		becomes(t, s, here, StateLocal)
		eventually(t, "a new connection", func() bool { return srv.count("accepted") == n+2 })
		becomes(t, s, far, StateArmed)
	}
	if hints := pendingHints(s); len(hints) > 0 {
		t.Errorf("hints %+v", hints)
	}
	if st := becomes(t, s, far, StateArmed); st.Short != 0 || st.Lifetime != 0 {
		t.Errorf("our own closing is taken for the server's habit: %+v", st)
	}
}
