package tripwire

// Renew makes every connection anew, for when what stood before is of no use: connection
// tracking that begins now takes the end of an older one for invalid. A server that died
// in between refuses the new connection, which is a hint. What the kernel tells of
// listening sockets stays as it is.
func (s *Set) Renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.renew()
	s.sweep()
	s.ring()
}

func (s *Set) renew() {
	now := clock()
	for _, w := range s.wires {
		switch w.state {
		case StateArmed, StateDialing:
			s.drop(w)
			s.wait(w, now, "made anew")
		case StateUnknown, StateLocal, StateWaiting, StateGivenUp:
		}
	}
}
