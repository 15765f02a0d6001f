package plane

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/run"
)

// Remove takes away the table, the rules and the routes that Ensure made, and nothing else.
// Users travel as they would without shunt from then on. With manage_rules off nothing is
// ours, so nothing happens.
func (p *Plane) Remove(ctx context.Context, c egress.Config) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.Plane.ManageRules {
		return nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	s, err := p.look(ctx, c)
	if err != nil {
		return err
	}
	var errs []error
	// Marks go first, so that nothing marked ever meets a missing rule.
	if s.table.present {
		p.nft.DelTable(nftTable())
		if err = p.nft.Flush(); err != nil {
			_ = p.dropNFT()
			return fmt.Errorf("%s: delete: %w", tableTitle, err)
		}
		run.Point(ctx, "plane.loaded")
	}
	for _, family := range s.families {
		tables := map[int]bool{}
		for _, l := range c.Lanes {
			tables[l.Table] = true
		}
		for _, k := range s.rules[family] {
			if k.Protocol != protocol {
				continue
			}
			if k.Table != unix.RT_TABLE_MAIN {
				tables[k.Table] = true
			}
			errs = append(errs, wrap(p.route.RuleDel(&k), k, family))
			run.Point(ctx, "plane.rules")
		}
		for table := range tables {
			errs = append(errs, p.removeRoutes(ctx, family, table))
		}
	}
	return errors.Join(errs...)
}

// removeRoutes takes our routes out of one table.
func (p *Plane) removeRoutes(ctx context.Context, family, table int) error {
	routes, err := p.readRoutes(family, table)
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range routes {
		if k.Protocol == protocol {
			errs = append(errs, wrap(p.deleteRoute(k), k, family))
			run.Point(ctx, "plane.routes")
		}
	}
	return errors.Join(errs...)
}

func wrap(err error, what fmt.Stringer, family int) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("delete %s (%s): %w", what, familyName(family), err)
}

var _ fmt.Stringer = netlink.Rule{}
