package egress

type uplinkState int

const (
	uplinkUp uplinkState = iota + 1
	uplinkDown
	uplinkDoubtful // the gateway answers, nothing behind it does
)

// uplinkOf weighs the direct path. One lane that passes now is proof enough.
func uplinkOf(in *Input) uplinkState {
	for _, l := range in.Lanes {
		if l.Round != nil && l.Round.Pass {
			return uplinkUp
		}
	}
	u := in.Uplink
	if u == nil { // nobody looked: nothing may be concluded against a lane
		return uplinkDown
	}
	for _, ok := range u.Targets {
		if ok {
			return uplinkUp
		}
	}
	switch {
	case len(u.Targets) == 0 && u.GatewayOK:
		return uplinkUp
	case u.GatewayOK:
		return uplinkDoubtful
	}
	return uplinkDown
}
