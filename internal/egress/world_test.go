package egress

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func at(clock string) time.Time {
	t, err := time.Parse("15:04:05", clock)
	if err != nil {
		panic(err)
	}
	return time.Date(2026, 11, 30, t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// endpoint n of the test world; every one in a /24 of its own.
func endpoint(n int) string { return fmt.Sprintf("198.18.%d.10:51820", n) }

func row(n int) Row {
	return Row{
		Rank: n, File: fmt.Sprintf("Germany, Berlin S%d.conf", n), Endpoint: endpoint(n), Avg: time.Duration(20+n) * time.Millisecond,
		Path: fmt.Sprintf("/pools/gen/conf/%d.conf", n), Pair: fmt.Sprintf("pair%d", n), Identity: "same",
	}
}

func testConfig(lanes int) Config {
	c := Config{
		Check: CheckConfig{Count: 5, Need: 2, StrictCount: 5, MaxHandshake: 3 * time.Minute, FullSize: true, DeepEvery: time.Minute},
		Repair: RepairConfig{
			Threshold: 2, Rise: 2, Parallel: 4, Limit: 12, SwapLimit: 3, Readd: 2 * time.Minute,
			HoldMin: 10 * time.Minute, HoldMax: 24 * time.Hour, HoldDecay: 6 * time.Hour, RetryAfter: 30 * time.Second,
		},
		Pool:  PoolConfig{MinRatio: 0.8},
		Modes: ModesConfig{Threshold: 5, Window: 24 * time.Hour, Cooldown: 2 * time.Hour, RetryMin: 30 * time.Second, RetryMax: 10 * time.Minute},
		Plane: PlaneConfig{ManageRules: true, MarkMask: 0xfff, ClassMask: 0xff000},
	}
	for i := 1; i <= lanes; i++ {
		c.Lanes = append(c.Lanes, Lane{Name: fmt.Sprintf("egress%d", i), Interface: fmt.Sprintf("vpn%d", i), Table: 200 + i, Mark: Mark(0x200 + i)})
	}
	return c
}

// healthy is five lanes that pass on endpoints 1 to 5 of a pool of nine, tested at 04:20.
func healthy(command string) Input {
	in := Input{
		Version: InputVersion, Command: command, Now: noon, Seed: 100, Config: testConfig(5), KV: map[string]string{},
		Memory: Memory{}.clone(), Proofs: map[string]TestResult{}, Busy: map[string]string{}, Plane: PlaneView{Ready: true, Classes: map[string]string{}},
		Uplink: &UplinkView{GatewayOK: true, Targets: map[string]bool{"203.0.113.53": true}},
	}
	pool := Pool{Name: PoolForeign, Mtime: at("04:20:00")}
	for n := 1; n <= 9; n++ {
		pool.Rows = append(pool.Rows, row(n))
	}
	in.Pools = []Pool{pool, {Name: PoolAll, Mtime: pool.Mtime, Rows: pool.Rows}, {Name: PoolWorking, Mtime: pool.Mtime, Rows: pool.Rows}}
	for i, l := range in.Config.Lanes {
		r := row(i + 1)
		in.Lanes = append(in.Lanes, LaneView{
			Name: l.Name, Endpoint: r.Endpoint, Pair: r.Pair, Identity: r.Identity, Path: "/lanes/" + l.Name + ".conf",
			Device: DeviceView{Present: true, Up: true, Peers: []PeerView{{
				Pair: r.Pair, Endpoint: netip.MustParseAddrPort(r.Endpoint), Handshake: noon.Add(-30 * time.Second), Allowed: 1,
			}}},
			Round: &Round{Sent: 2, Got: 2, Pass: true, RTT: time.Duration(20+i) * time.Millisecond},
		})
		in.Plane.Classes[l.Name] = l.Name
		in.Memory.Lanes[l.Name] = LaneMemory{State: "up", Since: at("04:40:00"), DeepAt: noon}
	}
	return in
}

func silent() *Round { return &Round{Sent: 5, Took: 380 * time.Millisecond} }

// silence makes lanes silent; with misses as earlier rounds already counted.
func (in *Input) silence(misses int, lanes ...int) {
	for _, n := range lanes {
		l := &in.Lanes[n-1]
		l.Round = silent()
		m := in.Memory.Lanes[l.Name]
		m.Misses, m.State = misses, "suspect"
		in.Memory.Lanes[l.Name] = m
	}
}

func (in *Input) prove(ok bool, ns ...int) {
	for _, n := range ns {
		t := TestResult{Endpoint: endpoint(n), Handshake: 50 * time.Millisecond, Sent: 3, Got: 3, Avg: 50 * time.Millisecond, FullSize: true}
		if !ok {
			t = TestResult{Endpoint: endpoint(n), Reason: "no handshake"}
		}
		in.Proofs[t.Endpoint] = t
	}
}

func (in *Input) swapped(lane, n int, ok bool) {
	reason := ""
	if !ok {
		reason = "strict check: 5 of 5 pings lost"
	}
	l := in.Lanes[lane-1]
	in.Swaps = append(in.Swaps, SwapOutcome{Lane: l.Name, From: l.Endpoint, Endpoint: endpoint(n), OK: ok, Reason: reason})
}

func quarantined(n int, when time.Time, slot string) state.Quarantined {
	return state.Quarantined{Endpoint: endpoint(n), FailedAt: when, Slot: slot, Iface: "vpn", Reason: "silent", Replacement: endpoint(6)}
}

// brief is a plan in one line per step, for tables.
func brief(p Plan) []string {
	var out []string
	for _, s := range p.Steps {
		line := string(s.Kind) + " " + s.what()
		if s.If != "" {
			line += " ?"
		}
		out = append(out, line)
	}
	return out
}

func codes(p Plan) []string {
	var out []string
	for _, h := range p.Held {
		out = append(out, h.Object+" "+h.Code)
	}
	return out
}
