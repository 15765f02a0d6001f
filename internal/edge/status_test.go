package edge

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestStatusReadsOnly(t *testing.T) {
	bubble(t, 2, 3, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.is(dead, 1)
		w.table(3).down = errors.New("connection timed out")
		before, applies := w.probes[proxy(1)], w.table(1).applies
		s, err := e.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.Well() || s.Agrees() || w.probes[proxy(1)] != before || w.table(1).applies != applies {
			t.Errorf("well %v, agrees %v", s.Well(), s.Agrees())
		}
		var b strings.Builder
		s.Text(&b)
		for _, want := range []string{"proxy-01 10.0.0.11:25577", "replica core-03: unreachable (connection timed out)", "replica core-02: equal"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%q is not in:\n%s", want, b.String())
			}
		}
		w.table(3).down = nil
		if s, err = e.Status(t.Context()); err != nil || !s.Well() {
			t.Errorf("%v\n%s", err, asJSON(t, s))
		}
		w.leadsBy(2, proxy(2), 1)
		if s, err = e.Status(t.Context()); err != nil || s.Agrees() {
			t.Error("two tables that differ agree", err)
		}
	})
}

// leadsBy makes one table lead elsewhere, as a machine with other opinions would.
func (w *town) leadsBy(n int, to netip.AddrPort, epoch uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.table(n)
	f.table.Targets = slices.Clone(f.table.Targets)
	for i := range f.table.Targets {
		f.table.Targets[i].To, f.table.Targets[i].Claim.Epoch, f.table.Targets[i].Claim.By = to, epoch, nodeName(n)
	}
}

func TestExplain(t *testing.T) {
	bubble(t, 2, 1, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		w.retarget(e)
		list, err := e.Explain(t.Context(), []string{"front", "proxy-01", "front/proxy-02", vip, proxy(2).String()})
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		ExplainText(&b, list)
		for _, want := range []string{
			"service front", "leads to proxy-02 10.0.0.12:25577 (epoch 2)", "candidate proxy-01", "2 misses in a row: connection refused",
			"does not lead to it", "move     front 10.0.0.11:25577 -> 10.0.0.12:25577", "veto     front/proxy-01", "this machine has it",
		} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%q is not in:\n%s", want, b.String())
			}
		}
		var ask *AskError
		if _, err := e.Explain(t.Context(), []string{"nobody"}); !errors.As(err, &ask) {
			t.Errorf("of nobody: %v", err)
		}
	})
}

// Status tells what is, and what the next run would make of it.
func TestStatusBeforeAMove(t *testing.T) {
	bubble(t, 2, 1, func(t *testing.T, w *town) {
		e := w.begin(1)
		hold := Hold{Service: "front", Candidate: "proxy-01", Owner: "ada", Reason: "upgrade", Since: time.Now().Unix(), Until: time.Now().Unix() + 60}
		if err := e.world().changeHolds(t.Context(), nil, []Hold{hold}); err != nil {
			t.Fatal(err)
		}
		s, err := e.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := s.Services[0]
		if c.Candidate != "proxy-01" || c.Epoch != 1 || !strings.Contains(c.Reason, "the next run leads it to proxy-02") || s.Well() {
			t.Errorf("%+v", c)
		}
		var b strings.Builder
		s.Text(&b)
		for _, want := range []string{"held front/proxy-01 by ada", "proxy-01 held by ada (upgrade), until", "core-01 at work for another 30s"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%q is not in:\n%s", want, b.String())
			}
		}
	})
}

func TestWhatAPassDidAsText(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.entry(UDP, true)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		var b strings.Builder
		w.retarget(e).Text(&b)
		same(t, "text", `veto     front, candidate proxy-01 (10.0.0.11:25577): 2 misses in a row: connection refused
move     front, clients of 10.0.0.50:25565/tcp+udp: proxy-01 10.0.0.11:25577 -> proxy-02 10.0.0.12:25577 (epoch 2): proxy-01 is dead (2 misses in a row: connection refused)
flush    front, entries of 10.0.0.50:25565/tcp+udp that lead to proxy-01 10.0.0.11:25577: proxy-01 is dead
moved    front 10.0.0.50:25565/tcp+udp: 200.0 ms to the commit, 203.0 ms to the first connection, 1 conntrack entries deleted
`, b.String())
	})
}

// A replica that moves nothing has a table all the same, in case the address comes to it.
func TestAReplicaFillsItsOwnTable(t *testing.T) {
	bubble(t, 2, 2, func(t *testing.T, w *town) {
		w.begin(1)
		w.table(2).table, w.table(2).absent = Table{}, true
		second := w.env(2)
		w.retarget(second)
		w.wantLeads("rebuilt", "proxy-01")
		w.mu.Lock()
		w.table(2).table.Targets = w.table(2).table.Targets[:1]
		w.mu.Unlock()
		res := w.retarget(second)
		if kinds := stepKinds(res.Plan); !slices.Contains(kinds, StepSync) {
			t.Errorf("steps %v", kinds)
		}
		same(t, "elements", 2, len(w.table(2).table.Targets))
		same(t, "their epoch", w.epoch(1), w.epoch(2))
	})
}
