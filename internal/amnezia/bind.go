package amnezia

import (
	"errors"
	"sync"

	"golang.zx2c4.com/wireguard/conn"
)

// Bind is a conn.Bind that speaks AmneziaWG for the device above it. Its Codec's methods
// change parameters and peers while it runs.
type Bind struct {
	conn.Bind
	*Codec
	batches sync.Pool // of *[][]byte
}

// Wrap puts AmneziaWG around a bind, of any batch size. Wrong parameters are refused
// here, before anything is sent. A device looks at the type of its bind to follow
// changes of the host's routes: behind this one it does so only when it begins a
// handshake again.
func Wrap(inner conn.Bind, p Params, o Options) (*Bind, error) {
	c, err := NewCodec(p, o)
	if err != nil {
		return nil, err
	}
	return &Bind{Bind: inner, Codec: c}, nil
}

// Open implements conn.Bind.
func (b *Bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	inner, got, err := b.Bind.Open(port)
	if err != nil {
		return nil, 0, err
	}
	out := make([]conn.ReceiveFunc, len(inner))
	for i, receive := range inner {
		out[i] = func(bufs [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			n, err := receive(bufs, sizes, from)
			for k := range n {
				sizes[k], _ = b.Decode(bufs[k], sizes[k], from[k])
			}
			return n, err
		}
	}
	return out, got, nil
}

// Send implements conn.Bind. It uses the spare room of the buffers, as the default bind does.
func (b *Bind) Send(bufs [][]byte, to conn.Endpoint) error {
	list, ok := b.batches.Get().(*[][]byte)
	if !ok {
		list = new([][]byte)
	}
	out := (*list)[:0]
	var errs error
	for _, m := range bufs {
		var err error
		if out, err = b.Encode(out, m, to); err != nil {
			errs = errors.Join(errs, err)
		}
	}
	if err := b.send(out, to); err != nil {
		errs = errors.Join(errs, err)
	}
	clear(out)
	*list = out
	b.batches.Put(list)
	return errs
}

// send hands datagrams on in batches that the inner bind takes.
func (b *Bind) send(out [][]byte, to conn.Endpoint) error {
	var errs error
	for most := max(1, b.BatchSize()); len(out) > 0; {
		n := min(most, len(out))
		err := b.Bind.Send(out[:n], to)
		out = out[n:]
		var resent conn.ErrUDPGSODisabled
		if err != nil && !errors.As(err, &resent) {
			return errors.Join(errs, err)
		}
		if err != nil { // this batch was sent again without offload: the rest can go too
			errs = err
			if resent.RetryErr != nil {
				return errs
			}
		}
	}
	return errs
}
