package lane

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"

	"github.com/shunt-net/shunt/internal/amnezia"
)

// front is the control socket of a device behind AmneziaWG: it keeps the parameters from
// the device, which does not know them, and gives them back with what the device says.
type front struct {
	device *device.Device
	codec  *amnezia.Codec
}

// maxSet bounds one operation, bytes: a thousand peers fit.
const maxSet = 1 << 20

// handle serves one connection, which may hold many operations.
func (f *front) handle(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(io.LimitReader(c, maxSet))
	for {
		op, err := r.ReadString('\n')
		if err != nil {
			return
		}
		body, err := block(r)
		if err != nil {
			return
		}
		var answer string
		switch strings.TrimSuffix(op, "\n") {
		case "get=1":
			answer, err = f.get()
		case "set=1":
			err = f.set(body)
		default:
			return
		}
		if _, err := fmt.Fprintf(c, "%serrno=%d\n\n", answer, code(err)); err != nil {
			return
		}
	}
}

// block is the lines up to an empty one.
func block(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if line == "\n" {
			return b.String(), nil
		}
		b.WriteString(line)
	}
}

// code is an error as the protocol has it.
func code(err error) int64 {
	var known *device.IPCError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &known):
		return known.ErrorCode()
	}
	return ipc.IpcErrorInvalid
}

// set gives the parameters to the codec and the rest to the device.
func (f *front) set(lines string) error {
	rest, err := f.codec.Configure(lines)
	if err != nil || rest == "" {
		return err
	}
	return f.device.IpcSet(rest)
}

// get is what the device says, with the parameters ahead of the peers. Where there are
// none it is what any WireGuard device says.
func (f *front) get() (string, error) {
	text, err := f.device.IpcGet()
	if err != nil {
		return "", err
	}
	p := f.codec.Params()
	if p.Plain() {
		return text, nil
	}
	lines, err := p.UAPI(amnezia.V31)
	if err != nil {
		return "", err
	}
	ours := strings.Join(lines, "\n") + "\n"
	if i := strings.Index(text, "public_key="); i >= 0 {
		return text[:i] + ours + text[i:], nil
	}
	return text + ours, nil
}
