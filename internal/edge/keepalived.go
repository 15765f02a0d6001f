package edge

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
)

// The rungs of keepalived's priorities.
const (
	topRung     = 150 // holds the address
	backupRung  = 100
	rungStep    = 50
	rungFloor   = 2  // keepalived keeps the priority of a node that failed at 1: no healthy one may tie with it
	rungWeight  = 60 // that a failed node loses: the one below takes over when it is less than this away
	mostVirtual = 20 // addresses that one advertisement can name
	defaultIF   = "eth0"
)

// Ladder returns the priorities of n replicas, the holder's first: 150, 100, then each a
// step below all others, so that a new one never takes the address away, and within 60 of
// the one above, so that it takes over when that one fails. The step is 50; where a whole
// one would fall below the floor, it halves until it does not. The error says how many
// rungs there are.
func Ladder(n int) ([]int, error) {
	var out []int
	for len(out) < n {
		switch len(out) {
		case 0:
			out = append(out, topRung)
			continue
		case 1:
			out = append(out, backupRung)
			continue
		}
		next, ok := nextRung(out)
		if !ok {
			return nil, fmt.Errorf("keepalived: %d replicas, and the ladder of priorities has %d rungs", n, len(out))
		}
		out = append(out, next)
	}
	return out, nil
}

// nextRung is the priority of one more replica.
func nextRung(rungs []int) (int, bool) {
	lowest := slices.Min(rungs)
	step := rungStep
	for step > 0 && lowest-step < rungFloor {
		step /= 2
	}
	return lowest - step, step > 0
}

// KeepalivedOptions say what Keepalived can't see in the configuration.
type KeepalivedOptions struct {
	Interface string // that clients' traffic comes in by; "" = eth0
	VRID      int    // virtual router id, 1 to 255; 0 = made from the addresses
	Program   string // path of shunt; "" = /usr/local/bin/shunt
}

// KeepalivedFile is what keepalived reads on one replica.
type KeepalivedFile struct {
	Replica  string `json:"replica"`
	Priority int    `json:"priority"`
	Text     string `json:"text"` // whole keepalived.conf
}

// Keepalived writes a fitting keepalived.conf for each replica, in the order of the
// configuration, which is the order of their priorities.
func Keepalived(c Config, o KeepalivedOptions) ([]KeepalivedFile, error) {
	vips := virtualAddresses(c)
	switch {
	case len(c.Replicas) == 0:
		return nil, fmt.Errorf("keepalived: edge.replicas names no machine that could hold the addresses")
	case len(vips) == 0:
		return nil, fmt.Errorf("keepalived: edge.services names no virtual address")
	case o.VRID < 0 || o.VRID > 255:
		return nil, fmt.Errorf("keepalived: virtual router id %d: want 1 to 255", o.VRID)
	}
	rungs, err := Ladder(len(c.Replicas))
	if err != nil {
		return nil, err
	}
	if o.Interface == "" {
		o.Interface = defaultIF
	}
	if o.VRID == 0 {
		o.VRID = routerID(vips)
	}
	if o.Program == "" {
		o.Program = "/usr/local/bin/shunt"
	}
	var out []KeepalivedFile
	for i, r := range c.Replicas {
		out = append(out, KeepalivedFile{Replica: r.Name, Priority: rungs[i], Text: keepalivedText(c, o, i, rungs, vips)})
	}
	return out, nil
}

// virtualAddresses are those of all services, IPv4 first: the family of the first is that
// of the instance.
func virtualAddresses(c Config) []netip.Addr {
	var out []netip.Addr
	for _, s := range c.Services {
		for _, a := range s.VIP {
			if !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// routerID makes a virtual router id of the addresses, the same on every replica, and never
// 51, which is that of every example.
func routerID(vips []netip.Addr) int {
	h := fnv.New32a()
	for _, a := range vips {
		_, _ = h.Write([]byte(a.String() + "\n"))
	}
	id := int(h.Sum32()%254) + 1
	if id >= 51 {
		id++
	}
	return id
}

func keepalivedText(c Config, o KeepalivedOptions, i int, rungs []int, vips []netip.Addr) string {
	var b strings.Builder
	r := c.Replicas[i]
	fmt.Fprintf(&b, "# /etc/keepalived/keepalived.conf of %s; rung %d of %d: %s\n", r.Name, i+1, len(rungs), ladderText(rungs))
	fmt.Fprintf(&b, "global_defs {\n\trouter_id %s\n\tvrrp_version 3\n\tenable_script_security\n\tscript_user root\n}\n\n", r.Name)
	v4 := vips[0].Is4()
	which := "target6"
	if v4 {
		which = "target4"
	}
	fmt.Fprintf(&b, "# A machine without the table would answer nobody.\n")
	fmt.Fprintf(&b, "vrrp_script shunt_table {\n\tscript \"/usr/sbin/nft list map inet shunt_edge %s\"\n", which)
	fmt.Fprintf(&b, "\tinterval 2\n\ttimeout 2\n\tfall 2\n\trise 2\n\tweight -%d\n}\n\n", rungWeight)
	fmt.Fprintf(&b, "vrrp_instance shunt {\n\tstate BACKUP\n\tinterface %s\n\tvirtual_router_id %d\n\tpriority %d\n\tadvert_int 0.5\n", o.Interface, o.VRID, rungs[i])
	b.WriteString("\tgarp_master_refresh 1\n")
	b.WriteString(peersText(c, i, v4))
	own, other := splitFamilies(vips, v4)
	b.WriteString(listText("virtual_ipaddress", own))
	if len(other) > 0 {
		b.WriteString(listText("virtual_ipaddress_excluded", other))
	}
	fmt.Fprintf(&b, "\ttrack_script {\n\t\tshunt_table\n\t}\n\tnotify_master \"%s edge retarget\"\n}\n", o.Program)
	return b.String()
}

func ladderText(rungs []int) string {
	var words []string
	for _, r := range rungs {
		words = append(words, fmt.Sprint(r))
	}
	return strings.Join(words, ", ")
}

// peersText makes advertisements go from machine to machine, so that another's virtual
// router id on the same wire is none of our business; "" where an address is not known.
func peersText(c Config, i int, v4 bool) string {
	var own netip.Addr
	var peers []netip.Addr
	for j, r := range c.Replicas {
		at := slices.IndexFunc(r.Addresses, func(a netip.Addr) bool { return a.Is4() == v4 })
		switch {
		case at < 0:
			return ""
		case j == i:
			own = r.Addresses[at]
		default:
			peers = append(peers, r.Addresses[at])
		}
	}
	if len(peers) == 0 {
		return ""
	}
	return fmt.Sprintf("\tunicast_src_ip %s\n", own) + listText("unicast_peer", peers)
}

// splitFamilies parts the addresses that advertisements name from those that only go along.
func splitFamilies(vips []netip.Addr, v4 bool) (own, other []netip.Addr) {
	for _, a := range vips {
		if a.Is4() == v4 && len(own) < mostVirtual {
			own = append(own, a)
		} else {
			other = append(other, a)
		}
	}
	return own, other
}

func listText(key string, as []netip.Addr) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\t%s {\n", key)
	for _, a := range as {
		fmt.Fprintf(&b, "\t\t%s\n", a)
	}
	b.WriteString("\t}\n")
	return b.String()
}
