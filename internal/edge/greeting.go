package edge

// proxyLocal is a PROXY protocol header, version 2, command LOCAL: the connection is the
// sender's own, as a health check is, and speaks for no client
// (https://www.haproxy.org/download/2.8/doc/proxy-protocol.txt, section 2.2).
const proxyLocal = "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"

// Greeting is what a server has to hear on a connection before it is closed without a
// complaint in its log; "" = nothing.
func (p Probe) Greeting() string {
	if p.ProxyV2 {
		return proxyLocal
	}
	return ""
}
