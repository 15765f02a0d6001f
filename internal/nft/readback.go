package nft

import (
	"errors"
	"slices"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
)

// fewElements is how many changed elements are read back one by one. More are listed with
// their sets, which takes as long as the sets are large.
const fewElements = 16

// readBack asks the kernel for each element that a transaction of ours has changed, and
// gives the changed lists. False where that does not tell what the table is now: it was
// changed by others too, or the elements are not as they were written.
func (l *local) readBack(changes []change, at time.Time) (edge.Table, bool) {
	if l.last == nil {
		return edge.Table{}, false
	}
	leases, sure := l.aged()
	n := 0
	for _, c := range changes {
		n += len(c.del) + len(c.add)
		if c.kind == kindOnLink || c.kind == kindLease && (!sure || at.IsZero()) {
			return edge.Table{}, false
		}
	}
	if n > fewElements {
		return edge.Table{}, false
	}
	t := clone(l.last.found.table)
	if sure {
		t.Leases = leases
	}
	var only []kind
	for _, c := range changes {
		list, ok := l.asWritten(c, items(t, c.kind))
		if !ok || len(keep(&t, c.kind, list)) > 0 {
			return edge.Table{}, false
		}
		only = append(only, c.kind)
	}
	gen, err := generation(l.raw)
	if err != nil || gen != l.last.gen+1 {
		return edge.Table{}, false
	}
	l.moved(snapshot{table: t, gen: gen, whole: true}, only, at)
	return t, true
}

// asWritten is a list after a change, when the kernel has just that.
func (l *local) asWritten(c change, list []item) ([]item, bool) {
	added := map[key]bool{}
	for _, i := range c.add {
		added[i.key] = true
		is, err := readElement(l.raw, i.key, c.kind)
		if err != nil || is.key != i.key || is.to != i.to || is.note != i.note || (is.left > 0) != (i.left > 0) {
			return nil, false
		}
	}
	gone := map[key]bool{}
	for _, i := range c.del {
		gone[i.key] = true
		if added[i.key] {
			continue
		}
		if _, err := readElement(l.raw, i.key, c.kind); !errors.Is(err, unix.ENOENT) {
			return nil, false
		}
	}
	list = slices.DeleteFunc(list, func(i item) bool { return gone[i.key] || added[i.key] })
	return append(list, c.add...), true
}

// readElement asks for one element of the kind's set. One that is not there is unix.ENOENT.
func readElement(c *mdnetlink.Conn, k key, of kind) (item, error) {
	i := slices.IndexFunc(of.sets(), func(s set) bool { return s.family == 0 || s.family == k.family() })
	if i < 0 {
		return item{}, unix.ENOENT
	}
	s := of.sets()[i]
	m, err := request(unix.NFT_MSG_GETSETELEM, 0, []string{tableName, s.name})
	if err != nil {
		return item{}, err
	}
	b := nest(unix.NFTA_DATA_VALUE, item{key: k}.wire().Key)
	b = nest(unix.NFTA_SET_ELEM_KEY|unix.NLA_F_NESTED, b)
	b = nest(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
	m.Data = append(m.Data, nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, b)...)
	msgs, err := c.Execute(m)
	if err != nil {
		return item{}, err
	}
	for _, m := range msgs {
		for _, e := range appendElements(nil, body(m)) {
			if it, ok := e.item(s); ok {
				return it, nil
			}
		}
	}
	return item{}, errors.New("the kernel names no element")
}

// nest is one netlink attribute.
func nest(kind uint16, value []byte) []byte {
	b, err := mdnetlink.MarshalAttributes([]mdnetlink.Attribute{{Type: kind, Data: value}})
	if err != nil {
		panic("nft: an attribute of " + err.Error()) // its length is bounded by what a key is
	}
	return b
}
