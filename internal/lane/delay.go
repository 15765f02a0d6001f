package lane

import (
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
)

// delayQueue bounds the datagrams on their way; more are dropped, as a full link would.
const delayQueue = 1 << 14

// delay is a bind that holds every outgoing datagram for a fixed time, in order.
type delay struct {
	conn.Bind
	by   time.Duration
	mu   sync.Mutex
	sent chan flight // nil while closed
}

type flight struct {
	at   time.Time
	bufs [][]byte
	ep   conn.Endpoint
}

// newDelay returns b itself where by is 0.
func newDelay(b conn.Bind, by time.Duration) conn.Bind {
	if by <= 0 {
		return b
	}
	return &delay{Bind: b, by: by}
}

func (d *delay) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	fns, got, err := d.Bind.Open(port)
	if err != nil {
		return fns, got, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sent = make(chan flight, delayQueue)
	go d.fly(d.sent)
	return fns, got, nil
}

func (d *delay) fly(sent <-chan flight) {
	for f := range sent {
		time.Sleep(time.Until(f.at)) //nolint:forbidigo // measures a duration
		_ = d.Bind.Send(f.bufs, f.ep)
	}
}

func (d *delay) Close() error {
	d.mu.Lock()
	if d.sent != nil {
		close(d.sent)
		d.sent = nil
	}
	d.mu.Unlock()
	return d.Bind.Close()
}

func (d *delay) Send(bufs [][]byte, ep conn.Endpoint) error {
	f := flight{at: time.Now().Add(d.by), ep: ep} //nolint:forbidigo // measures a duration
	for _, b := range bufs {
		f.bufs = append(f.bufs, append([]byte(nil), b...))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sent == nil {
		return nil
	}
	select {
	case d.sent <- f:
	default:
	}
	return nil
}
