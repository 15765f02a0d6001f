package knock

import "context"

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
	if hello := k.target.Probe.Greeting(); hello != "" {
		_, _ = c.Write([]byte(hello)) // who has closed by now has answered as well
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
