package plane

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/run"
)

// loadTimeout bounds one run of nft.
const loadTimeout = 10 * time.Second

// applyTable loads the table where its static part differs, or else moves elements.
func (p *Plane) applyTable(ctx context.Context, s *seen, want map[string]string) (bool, error) {
	if len(s.table.drift(s.c, s.facts)) == 0 {
		return p.applyElements(ctx, s.c, s.table, want)
	}
	if err := load(ctx, Ruleset(s.c, s.facts, want)); err != nil {
		return false, err
	}
	run.Point(ctx, "plane.loaded")
	return true, nil
}

// load replaces the table in one transaction: packets meet the old one or the new one. The
// first line makes the deletion valid where there is none yet.
func load(ctx context.Context, text string) error {
	script := tableTitle + "\ndelete " + tableTitle + "\n" + text
	res, err := run.Command(ctx, []string{"nft", "-f", "-"}, run.Options{Stdin: strings.NewReader(script), Timeout: loadTimeout})
	if err != nil {
		return fmt.Errorf("%s: load: %w: %s", tableTitle, err, strings.TrimSpace(string(res.Output)))
	}
	return nil
}

// moves lists what has to leave and to enter which set so that the classes that want names
// are where it says. What it does not name stays. With tidy, what is the class of no lane leaves
// too. Sets that somebody else's table does not have for IPv6 are passed over.
func moves(c egress.Config, t *table, want map[string]string, tidy bool) (out, in []element) {
	target := map[classKey]string{} // "" = none
	class := map[classKey]bool{}
	for _, l := range c.Lanes {
		to, named := want[l.Name]
		for _, k := range classKeys(l) {
			class[k] = true
			if named {
				target[k] = toSet(c, to)
			}
		}
	}
	for _, base := range toSets(c) {
		for _, v6 := range []bool{false, true} {
			name := classKey{v6: v6}.in(base)
			if v6 && !t.has(name) {
				continue
			}
			held := map[classKey]bool{}
			for _, e := range t.moving(name) {
				k := classKey{v6, e.value}
				held[k] = true
				to, named := target[k]
				if named && to != base || tidy && !class[k] {
					out = append(out, e)
				}
			}
			for k, to := range target {
				if k.v6 == v6 && to == base && !held[k] {
					in = append(in, element{name, k.value})
				}
			}
		}
	}
	slices.SortFunc(in, func(a, b element) int { return cmp.Or(cmp.Compare(a.set, b.set), cmp.Compare(a.value, b.value)) })
	return out, in
}

// movingSets are all sets whose elements a run moves.
func movingSets(c egress.Config) []string {
	names := toSets(c)
	for _, n := range toSets(c) {
		names = append(names, six(n))
	}
	return names
}

// applyElements moves elements in one transaction and reads them back.
func (p *Plane) applyElements(ctx context.Context, c egress.Config, t *table, want map[string]string) (bool, error) {
	for _, home := range slices.Sorted(keys(want)) {
		name := toSet(c, want[home])
		if name != "" && !t.has(name) {
			return false, fmt.Errorf("class of %s: set %s: missing", home, name)
		}
	}
	out, in := moves(c, t, want, c.Plane.ManageRules)
	if len(out)+len(in) == 0 {
		return false, nil
	}
	if err := p.openNFT(ctx); err != nil {
		return false, err
	}
	batch := func(list []element, do func(*nftables.Set, []nftables.SetElement) error) error {
		for _, e := range list {
			s := &nftables.Set{Table: nftTable(), Name: e.set, KeyType: nftables.TypeDSCP}
			key := []byte{byte(e.value)}
			if _, mark := t.marks[e.set]; mark {
				s.KeyType, key = nftables.TypeMark, binary.NativeEndian.AppendUint32(nil, e.value)
			}
			if err := do(s, []nftables.SetElement{{Key: key}}); err != nil {
				return err
			}
		}
		return nil
	}
	err := errors.Join(batch(out, p.nft.SetDeleteElements), batch(in, p.nft.SetAddElements), p.nft.Flush())
	if err != nil {
		_ = p.dropNFT()
		return false, fmt.Errorf("%s: move elements: %w", tableTitle, err)
	}
	run.Point(ctx, "plane.moved")

	now, err := p.readSets(ctx, movingSets(c))
	if err != nil {
		return true, fmt.Errorf("read back: %w", err)
	}
	if out, in = moves(c, now, want, c.Plane.ManageRules); len(out)+len(in) > 0 {
		return true, fmt.Errorf("%s: somebody else moved elements at the same time", tableTitle)
	}
	return true, nil
}
