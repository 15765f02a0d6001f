package probe
import ("testing";"time";"net/netip")
func TestDbg(t *testing.T){
	w := newWorld(t, "lane0", 1)
	peer, err := w.far.LinkByName("far")
	must(t, err)
	must(t, w.far.LinkSetMTU(peer, 1300))
	begun:=time.Now()
	for _, x := range []netip.Addr{w.v6} {
	o := ping(t.Context(), volley{iface: w.name, targets: []netip.Addr{x}, n:2, need:1, gap: fullWait, wait: fullWait, payload: 1420-48, whole:true})
	t.Logf("%+v %s", o, time.Since(begun))
	}
}
