package story

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/cage"
)

// linkWatch notes each kernel interface of a namespace that comes or goes, as the kernel
// tells it.
type linkWatch struct {
	known map[int32]bool
	stop  chan struct{}
	mu    sync.Mutex
	seen  []string
}

// watchLinks begins to watch; what is there now is no news.
func watchLinks(ns *cage.Namespace) (*linkWatch, error) {
	w := &linkWatch{known: map[int32]bool{}, stop: make(chan struct{})}
	h := netns.NsHandle(ns.FD())
	updates := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribeAt(h, updates, w.stop); err != nil {
		return nil, fmt.Errorf("watching links: %w", err)
	}
	n, err := netlink.NewHandleAt(h, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watching links: %w", err)
	}
	defer n.Close()
	list, err := n.LinkList()
	if err != nil {
		return nil, fmt.Errorf("watching links: %w", err)
	}
	for _, l := range list {
		w.known[int32(l.Attrs().Index)] = true //nolint:gosec // an index of the kernel's
	}
	go w.run(updates)
	return w, nil
}

func (w *linkWatch) run(updates <-chan netlink.LinkUpdate) {
	for u := range updates {
		gone := u.Header.Type == unix.RTM_DELLINK
		if w.known[u.Index] && !gone { // a change of flags is no new interface
			continue
		}
		w.mu.Lock()
		w.seen = append(w.seen, u.Attrs().Name)
		w.mu.Unlock()
	}
}

// news are the interfaces that came or went up to now.
func (w *linkWatch) news() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

// control shows that the watch would have seen an interface, and ends it.
func (w *linkWatch) control(ctx context.Context, e *lab.Env, ns *cage.Namespace) error {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "seen0"}, PeerName: "seen1"}
	if err := h.LinkAdd(v); err != nil {
		return fmt.Errorf("making an interface: %w", err)
	}
	if err := h.LinkDel(v); err != nil {
		return fmt.Errorf("removing an interface: %w", err)
	}
	err = lab.Await(ctx, 2*time.Second, "the kernel's word of a new interface", func() bool { return slices.Contains(w.news(), "seen0") })
	e.Control("interface_seen", float64(len(w.news())), err == nil)
	close(w.stop)
	return nil
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }
