package nft

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/shunt-net/shunt/internal/edge"
)

// What nft and the kernel take.
const (
	maxNote   = 128 // bytes of a comment
	maxName   = 32  // bytes of a service's or a replica's name
	maxDigest = 16  // bytes
)

// isName says whether s can be written into a comment and read again.
func isName(s string, limit int) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// claimNote is the comment of a target: front epoch 7 by core-01.
func claimNote(c edge.Claim) string {
	if c == (edge.Claim{}) {
		return ""
	}
	return fmt.Sprintf("%s epoch %d by %s", c.Service, c.Epoch, c.By)
}

// parseClaim reads a comment; the zero Claim stands for somebody else's words.
func parseClaim(note string) edge.Claim {
	f := strings.Split(note, " ")
	if len(f) != 5 || f[1] != "epoch" || f[3] != "by" || !isName(f[0], maxName) || !isName(f[4], maxName) {
		return edge.Claim{}
	}
	epoch, err := strconv.ParseUint(f[2], 10, 64)
	if err != nil || strconv.FormatUint(epoch, 10) != f[2] {
		return edge.Claim{}
	}
	return edge.Claim{Service: f[0], Epoch: epoch, By: f[4]}
}

// A lease is one element, or several where the services that it holds need more room than
// one comment has:
//
//	core-01 config 12ab34cd opinion 56ef78ab holds front,voice
//	core-01 part 2 holds chat,web

// leaseKey is the key of a lease's first, second … element.
func leaseKey(node string, part int) uint32 {
	h := fnv.New32a()
	h.Write([]byte(node))
	if part > 1 {
		h.Write([]byte("/" + strconv.Itoa(part)))
	}
	return h.Sum32()
}

// leaseItems are a lease's elements.
func leaseItems(l edge.Lease) []item {
	part := 1
	note := fmt.Sprintf("%s config %s opinion %s", l.Node, orDash(l.Config), orDash(l.Opinion))
	var out []item
	end := func() {
		out = append(out, item{key: key{mark: leaseKey(l.Node, part)}, note: note, left: l.Left})
		part++
		note = fmt.Sprintf("%s part %d", l.Node, part)
	}
	first := true
	for _, name := range l.Holds {
		if !first && len(note)+1+len(name) > maxNote || first && len(note)+len(" holds ")+len(name) > maxNote {
			end()
			first = true
		}
		if first {
			note += " holds " + name
		} else {
			note += "," + name
		}
		first = false
	}
	end()
	return out
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// leasePart is what one element says.
type leasePart struct {
	lease edge.Lease
	part  int
}

func parseLease(i item) (leasePart, bool) {
	f := strings.Split(i.note, " ")
	p := leasePart{lease: edge.Lease{Node: f[0], Left: i.left}, part: 1}
	switch {
	case len(f) >= 5 && f[1] == "config" && f[3] == "opinion":
		p.lease.Config, p.lease.Opinion = strings.TrimPrefix(f[2], "-"), strings.TrimPrefix(f[4], "-")
		f = f[5:]
	case len(f) == 5 && f[1] == "part":
		n, err := strconv.Atoi(f[2])
		if err != nil || n < 2 {
			return p, false
		}
		p.part = n
		f = f[3:]
	default:
		return p, false
	}
	if len(f) == 2 && f[0] == "holds" {
		p.lease.Holds = strings.Split(f[1], ",")
	} else if len(f) > 0 {
		return p, false
	}
	return p, i.left >= 0 && i.key.mark == leaseKey(p.lease.Node, p.part) && checkLease(p.lease) == nil
}

// leases puts the elements together again. A part without its first, or after one that is
// missing, says nothing; it runs out by itself.
func leases(list []item) (out []edge.Lease, odd []item) {
	type at struct {
		node string
		part int
	}
	parts := map[at]edge.Lease{}
	for _, i := range list {
		p, ok := parseLease(i)
		if !ok {
			odd = append(odd, i)
			continue
		}
		parts[at{p.lease.Node, p.part}] = p.lease
	}
	for where, l := range parts {
		if where.part != 1 {
			continue
		}
		for n := 2; ; n++ {
			more, ok := parts[at{where.node, n}]
			if !ok {
				break
			}
			l.Holds = append(l.Holds, more.Holds...)
			l.Left = min(l.Left, more.Left)
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b edge.Lease) int { return strings.Compare(a.Node, b.Node) })
	return out, odd
}

func checkLease(l edge.Lease) error {
	if !isName(l.Node, maxName) {
		return fmt.Errorf("lease of %q: not a name that a table can hold", l.Node)
	}
	for _, d := range []string{l.Config, l.Opinion} {
		if d != "" && (!isName(d, maxDigest) || d[0] == '-') {
			return fmt.Errorf("lease of %s: %q is no digest that a table can hold", l.Node, d)
		}
	}
	for _, h := range l.Holds {
		if !isName(h, maxName) {
			return fmt.Errorf("lease of %s: holds %q: not a name that a table can hold", l.Node, h)
		}
	}
	return nil
}
