package nft

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// conn is a connection that was answered.
type conn struct {
	net.Conn
	r    *bufio.Reader
	name string     // of who answered
	seen netip.Addr // what it took us for
}

// dial connects from a namespace until it is answered, for at most limit.
func (s *space) dial(network, to string, limit time.Duration, with ...func(int) error) (*conn, error) {
	c := &conn{}
	var err error
	s.do(func() {
		d := net.Dialer{Timeout: limit, Control: func(_, _ string, raw syscall.RawConn) error {
			var errs []error
			cerr := raw.Control(func(fd uintptr) {
				for _, f := range with {
					errs = append(errs, f(int(fd)))
				}
			})
			return errors.Join(append(errs, cerr)...)
		}}
		c.Conn, err = d.Dial(network, to)
	})
	if err != nil {
		return nil, err
	}
	c.r = bufio.NewReader(c)
	if strings.HasPrefix(network, "udp") {
		if _, err := io.WriteString(c, "who?\n"); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(limit))
	line, err := c.r.ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	_ = c.SetReadDeadline(time.Time{})
	name, from, _ := strings.Cut(strings.TrimSpace(line), " ")
	at, err := netip.ParseAddrPort(from)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.name, c.seen = name, at.Addr().Unmap()
	return c, nil
}

// ask is who answers one connection, and what it took us for.
func (s *space) ask(network, to string) (name string, seen netip.Addr, err error) {
	c, err := s.dial(network, to, time.Second)
	if err != nil {
		return "", netip.Addr{}, err
	}
	return c.name, c.seen, c.Close()
}

// echo says a word and waits for it.
func (c *conn) echo(word string) error {
	if _, err := io.WriteString(c, word+"\n"); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	line, err := c.r.ReadString('\n')
	if err == nil && line != word+"\n" {
		err = fmt.Errorf("said %q, heard %q", word, line)
	}
	return err
}
