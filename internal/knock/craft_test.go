package knock

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// craft is a small Minecraft server for tests, written apart from the code that it tests.
type craft struct {
	proxy  bool   // wants a PROXY header first and ends a connection without one
	status string // "" = a common one
	reply  []byte // instead of a status
	noPong bool
	login  func(version int64, start []byte) []byte // answer to a login; nil = none, and it waits
	seen   func(event string)
}

const commonStatus = `{"version":{"name":"1.21.1","protocol":767},"players":{"max":20,"online":3},"description":{"text":"hello"}}`

func (s *craft) note(format string, args ...any) {
	if s.seen != nil {
		s.seen(fmt.Sprintf(format, args...))
	}
}

func (s *craft) serve(c net.Conn) error {
	r := bufio.NewReader(c)
	if s.proxy {
		var h [16]byte
		if _, err := io.ReadFull(r, h[:]); err != nil {
			return fmt.Errorf("PROXY header: %w", err)
		}
		if string(h[:12]) != "\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a" || h[12] != 0x20 || h[14] != 0 || h[15] != 0 {
			return fmt.Errorf("PROXY header % x", h)
		}
		s.note("proxy local")
	}
	p, err := frame(r)
	if errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	version, p := num(p[1:])
	size, p := num(p)
	host, p := string(p[:size]), p[size:]
	port := binary.BigEndian.Uint16(p)
	next, _ := num(p[2:])
	s.note("handshake %d %s %d %d", int32(version), host, port, next)
	if next == 2 {
		return s.admit(c, r, version)
	}
	if p, err = frame(r); err != nil || len(p) != 1 || p[0] != 0 {
		return fmt.Errorf("status request % x: %w", p, err)
	}
	out := s.reply
	if out == nil {
		text := s.status
		if text == "" {
			text = commonStatus
		}
		out = framed(0, length(text))
	}
	if _, err := c.Write(out); err != nil {
		return err
	}
	if s.reply != nil {
		return untilEnd(c)
	}
	if p, err = frame(r); err != nil || len(p) != 9 || p[0] != 1 {
		return fmt.Errorf("ping % x: %w", p, err)
	}
	s.note("ping")
	if !s.noPong {
		if _, err := c.Write(append([]byte{9}, p...)); err != nil {
			return err
		}
	}
	return untilEnd(c)
}

func (s *craft) admit(c net.Conn, r *bufio.Reader, version int64) error {
	p, err := frame(r)
	if err != nil {
		return fmt.Errorf("login: %w", err)
	}
	s.note("login")
	if s.login == nil {
		return untilEnd(c)
	}
	if out := s.login(version, p); out != nil {
		if _, err := c.Write(out); err != nil {
			return err
		}
		return untilEnd(c)
	}
	return nil // it ends the connection
}

// frame reads a packet with its id.
func frame(r *bufio.Reader) ([]byte, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(r, b)
	return b, err
}

func num(b []byte) (int64, []byte) {
	u, n := binary.Uvarint(b)
	return int64(u), b[n:]
}

func length(s string) []byte { return append(binary.AppendUvarint(nil, uint64(len(s))), s...) }

func framed(id byte, fields []byte) []byte {
	return append(binary.AppendUvarint(nil, uint64(len(fields)+1)), append([]byte{id}, fields...)...)
}
