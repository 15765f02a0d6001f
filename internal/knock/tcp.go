package knock

import "context"

// proxyLocal is a PROXY protocol header, version 2, command LOCAL: the connection is the
// proxy's own, as a health check is, and speaks for no client.
func proxyLocal() []byte {
	return []byte("\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00")
}

// tcp asks for a connection; the server's kernel is enough to answer. What the server does
// with the connection afterwards is no part of the question.
func (k *knocking) tcp(ctx context.Context) {
	c := k.connect(ctx)
	if c == nil {
		return
	}
	defer c.Close()
	k.heard()
	k.good()
	if k.target.Probe.ProxyV2 {
		_, _ = c.Write(proxyLocal()) // who has closed by now has answered as well
	}
}

// connect makes the probe's connection, or judges why there is none.
func (k *knocking) connect(ctx context.Context) *conn {
	if err := ctx.Err(); err != nil {
		k.unknown("given up early: " + err.Error())
		return nil
	}
	c, err := dial(ctx, k.target.Addr, k.end)
	if err != nil {
		k.connectFailed(ctx, err)
		return nil
	}
	k.a.Answers = true
	return c
}
