package plane

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
)

// Text is what Ensure would make of everything from nothing: the commands of `ip` and the
// table, as a person would type them. It reads the kernel and changes nothing.
func (p *Plane) Text(ctx context.Context, c egress.Config, classes map[string]string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := known(c, classes); err != nil {
		return "", err
	}
	s, err := p.look(ctx, c)
	if err != nil {
		return "", err
	}
	want := s.positions()
	maps.Copy(want, classes)
	return s.text(want), nil
}

func (s *seen) text(classes map[string]string) string {
	var b strings.Builder
	for _, family := range s.families {
		fmt.Fprintf(&b, "# %s routes and rules (protocol %d)\n", familyName(family), protocol)
		ip := "ip"
		if family == unix.AF_INET6 {
			ip = "ip -6"
		}
		for _, r := range s.wantRoutes(family) {
			fmt.Fprintf(&b, "%s route add %s\n", ip, r)
		}
		for _, r := range wantRules(s.c, family) {
			fmt.Fprintf(&b, "%s rule add %s\n", ip, r)
		}
	}
	fmt.Fprintf(&b, "# nft -f\n%s", Ruleset(s.c, s.facts, classes))
	return b.String()
}
