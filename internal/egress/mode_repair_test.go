package egress

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/state"
)

// What a repair tells the machine: once the lanes have nothing left to be found out, and no
// sooner.
func TestWhatARepairTellsModes(t *testing.T) {
	searched := func(in *Input, lanes ...int) {
		in.silence(3, lanes...)
		for _, n := range lanes {
			in.Lanes[n-1].Renewed = true
		}
		in.prove(false, 6, 7, 8, 9)
	}
	loaded := func(in *Input, lane int) {
		in.silence(1, lane)
		in.Lanes[lane-1].Round.RxBefore, in.Lanes[lane-1].Round.RxAfter = 1000, 900_000
	}
	const exhausted = "VPN exhausted: no slot passes and no candidate is left"
	for name, tt := range map[string]struct {
		change func(*Input)
		modes  []string // steps of modes
		to     state.Mode
	}{
		"every lane passes":   {func(*Input) {}, nil, state.ModeNormal},
		"one is loaded":       {func(in *Input) { loaded(in, 2) }, nil, state.ModeNormal},
		"one is only suspect": {func(in *Input) { in.silence(0, 2) }, nil, state.ModeSlotRepair},
		"one was not judged":  {func(in *Input) { in.Lanes[1].Round = nil }, nil, state.ModeSlotRepair},
		"one is dead and nothing is left to replace it": {func(in *Input) { searched(in, 2) }, nil, state.ModeSlotRepair},
		"four are dead and nothing is left":             {func(in *Input) { searched(in, 1, 2, 3, 4) }, nil, state.ModeSlotRepair},
		"four are dead, one is suspect":                 {func(in *Input) { searched(in, 1, 2, 3, 4); in.silence(0, 5) }, nil, state.ModeSlotRepair},
		"four are dead, one is loaded":                  {func(in *Input) { searched(in, 1, 2, 3, 4); loaded(in, 5) }, nil, state.ModeSlotRepair},
		"all are dead and nothing is left": {
			func(in *Input) { searched(in, 1, 2, 3, 4, 5) }, []string{"refresh exhaustion: " + exhausted}, state.ModeEmergencyRefresh,
		},
		"all are dead, and a candidate is not tried yet": {
			func(in *Input) { searched(in, 1, 2, 3, 4, 5); delete(in.Proofs, endpoint(9)) }, nil, state.ModeSlotRepair,
		},
		"all are dead, and one has been replaced": {
			func(in *Input) { searched(in, 1, 2, 3, 4, 5); in.prove(true, 9); in.swapped(1, 9, true) }, nil, state.ModeSlotRepair,
		},
		"all are dead, and a doubtful uplink let a handshake through": {
			func(in *Input) {
				searched(in, 1, 2, 3, 4, 5)
				in.Uplink = &UplinkView{GatewayOK: true, Targets: map[string]bool{"203.0.113.53": false}}
				in.Proofs[endpoint(6)] = TestResult{Endpoint: endpoint(6), Handshake: time.Millisecond, Reason: "no data"}
			}, []string{"refresh exhaustion: " + exhausted}, state.ModeEmergencyRefresh,
		},
		"all are dead, and its last attempt was just now": {
			func(in *Input) {
				searched(in, 1, 2, 3, 4, 5)
				in.Uplink = &UplinkView{GatewayOK: true, Targets: map[string]bool{"203.0.113.53": false}}
				in.Proofs[endpoint(6)] = TestResult{Endpoint: endpoint(6), Handshake: time.Millisecond, Reason: "no data"}
				in.Memory.Modes.Tried = noon.Add(-29 * time.Second)
			}, nil, state.ModeSlotRepair,
		},
		"all are empty, and a doubtful uplink lets nothing through": {
			func(in *Input) {
				searched(in, 1, 2, 3, 4, 5)
				in.silence(0, 1, 2, 3, 4, 5)
				in.Uplink = &UplinkView{GatewayOK: true, Targets: map[string]bool{"203.0.113.53": false}}
				for i := range in.Lanes {
					in.Lanes[i].Endpoint, in.Lanes[i].Device.Peers = "", nil
				}
			}, nil, state.ModeSlotRepair,
		},
		"all are dead, and the filter leaves nothing": {
			func(in *Input) { searched(in, 1, 2, 3, 4, 5); in.Config.Rebalance.Allow = []string{"atlantis*"} }, nil, state.ModeSlotRepair,
		},
		"the uplink is down": {
			func(in *Input) {
				searched(in, 1, 2, 3, 4, 5)
				in.Uplink = &UplinkView{Targets: map[string]bool{"203.0.113.53": false}}
			}, nil, state.ModeSlotRepair,
		},
		"a retry is due": {func(in *Input) { in.word(state.ModeDegraded) }, []string{"refresh retry: no fresh pool yet; attempt 1"}, state.ModeDegraded},
		"a retry is due, and a gateway answers with nothing behind it": {
			func(in *Input) {
				in.word(state.ModeDegraded)
				searched(in, 1, 2, 3, 4, 5)
				in.Uplink = &UplinkView{GatewayOK: true, Targets: map[string]bool{"203.0.113.53": false}}
			}, nil, state.ModeDegraded,
		},
		"a retry is due, and only a handshake came through": {
			func(in *Input) {
				in.word(state.ModeDegraded)
				in.silence(0, 1, 2, 3, 4, 5)
				in.Uplink = &UplinkView{GatewayOK: true, Targets: map[string]bool{"203.0.113.53": false}}
				in.Proofs[endpoint(6)] = TestResult{Endpoint: endpoint(6), Handshake: time.Millisecond, Reason: "no data"}
			}, nil, state.ModeDegraded,
		},
		"an attempt was killed, and a way out is sought first": {
			func(in *Input) {
				in.allSilent(3)
				in.Uplink = &UplinkView{GatewayOK: true, Targets: map[string]bool{"203.0.113.53": false}}
				in.Memory.Modes.Attempt = &OpenAttempt{Kind: AttemptRetry}
			}, nil, state.ModeSlotRepair,
		},
		"an attempt was killed, and no way out was found": {
			func(in *Input) {
				searched(in, 1, 2, 3, 4, 5)
				in.Uplink = &UplinkView{GatewayOK: true, Targets: map[string]bool{"203.0.113.53": false}}
				in.Memory.Modes.Attempt = &OpenAttempt{Kind: AttemptRetry}
			}, nil, state.ModeDegraded,
		},
		"a retry is due, and a peer is to be added anew first": {
			func(in *Input) {
				in.word(state.ModeDegraded)
				in.silence(1, 2)
				in.Lanes[1].Device.Peers[0].Handshake = noon.Add(-time.Hour)
			}, nil, state.ModeDegraded,
		},
		"a retry is due, and a candidate is to be proven first": {
			func(in *Input) { in.word(state.ModeDegraded); in.silence(1, 2) }, nil, state.ModeDegraded,
		},
		"a retry is due, and a swap is to be made first": {
			func(in *Input) { in.word(state.ModeDegraded); in.silence(1, 2); in.prove(true, 6, 7, 8, 9) }, nil, state.ModeDegraded,
		},
		"a retry is due, and nothing but a swap is to be made first": {
			func(in *Input) { in.word(state.ModeDegraded); searched(in, 1, 2, 3, 4, 5); in.prove(true, 9) }, nil, state.ModeDegraded,
		},
		"a retry is due, and nothing but a proof is to be made first": {
			func(in *Input) {
				in.word(state.ModeDegraded)
				searched(in, 1, 2, 3, 4, 5)
				delete(in.Proofs, endpoint(9))
			}, nil, state.ModeDegraded,
		},
		"a retry is due, and the swap is made": {
			func(in *Input) {
				in.word(state.ModeDegraded)
				in.silence(1, 2)
				in.prove(true, 6, 7, 8, 9)
				in.swapped(2, 6, true)
			},
			[]string{"refresh retry: no fresh pool yet; attempt 1"},
			state.ModeDegraded,
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := healthy("repair")
			in.word(state.ModeSlotRepair)
			tt.change(&in)
			p := PlanRepair(in)
			var modes []string
			for _, s := range p.Steps {
				if s.Kind == StepRefresh || s.Kind == StepRebuild || s.Kind == StepDirect || s.Kind == StepLeave {
					modes = append(modes, string(s.Kind)+" "+s.what()+": "+s.Reason)
				}
			}
			to := state.Mode(in.KV[state.KeyMode])
			if p.Mode != nil {
				to = state.Mode(p.Mode.To)
			}
			if d := cmp.Diff(tt.modes, modes) + cmp.Diff(tt.to, to); d != "" {
				t.Errorf("(-want +got):\n%s\n%s", d, strings.Join(append(brief(p), codes(p)...), "\n"))
			}
		})
	}
}
