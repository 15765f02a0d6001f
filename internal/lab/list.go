package lab

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/wire"
)

// The provider's web site.
const (
	List4    = "203.0.113.80"
	ListName = "list.provider.example" // known only to the resolver inside the tunnels
)

// The rescue link: a second way out of the router, with no route to it.
const (
	RescueInterface = "lte0"
	RescueRouter4   = "172.31.0.1" // the router's address on it
	rescueNet4      = "172.31.0.0/30"
)

// AddRescue connects the router to the provider by a link of its own that no route uses.
func (w *World) AddRescue() error {
	if err := (wire.Wire{A: w.Router, B: w.Provider, IA: RescueInterface, IB: "lte"}).Connect(); err != nil {
		return err
	}
	for _, s := range []wire.Site{{NS: w.Router, Addrs: []string{RescueInterface + " " + RescueRouter4 + "/30"}}, {NS: w.Provider, Addrs: []string{"lte 172.31.0.2/30"}}} {
		if err := s.Apply(false); err != nil {
			return err
		}
	}
	return nil
}

// Strategy writes an executable (a script) into the router's folder of strategies.
func (w *World) Strategy(name, script string, perm os.FileMode) error {
	path := filepath.Join(w.Strategies, name)
	if err := replace(path, []byte(script), perm); err != nil {
		return err
	}
	return os.Chmod(path, perm) // whatever the umask
}

// Ways says from where the provider's site can be reached.
type Ways int

// The ways to the site.
const (
	AnyWay     Ways = iota
	TunnelOnly      // from the exits
	UplinkOnly      // from the router's own address
	RescueOnly      // by the rescue link
	NoWay
)

// ListSource is a source of the configuration: the archive of the provider's site, by its
// name or by its address.
func ListSource(byName bool) map[string]any {
	host := List4
	if byName {
		host = ListName
	}
	return map[string]any{"name": "site", "type": "archive", "url": "http://" + host + "/list.zip", "timeout": "5s"}
}

// ReachList decides from where the site can be reached: whoever else asks gets no answer.
func (w *World) ReachList(by Ways) error {
	c, err := nftables.New(nftables.WithNetNSFd(w.Provider.FD()), nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("provider: nftables: %w", err)
	}
	defer c.CloseLasting() //nolint:errcheck // Flush has said all
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "list"})
	c.FlushTable(t)
	chain := c.AddChain(&nftables.Chain{Name: "in", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
	site := netip.MustParsePrefix(List4 + "/32")
	allowed := map[Ways]string{AnyWay: "0.0.0.0/0", TunnelOnly: server.ExitNet4, UplinkOnly: WANNet4, RescueOnly: rescueNet4}
	if from, ok := allowed[by]; ok {
		e := join(inNet(site, true), inNet(netip.MustParsePrefix(from), false), []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}})
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: e})
	}
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: append(inNet(site, true), &expr.Verdict{Kind: expr.VerdictDrop})})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("provider: ways to the list: %w", err)
	}
	return nil
}
