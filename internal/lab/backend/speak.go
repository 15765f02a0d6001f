package backend

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// proxySignature begins a PROXY header of version 2.
const proxySignature = "\r\n\r\n\x00\r\nQUIT\n"

// skipProxyHeader reads a PROXY header, byte by byte so that nothing after it is taken.
func skipProxyHeader(r io.Reader) error {
	head := make([]byte, 6)
	if _, err := io.ReadFull(r, head); err != nil {
		return fmt.Errorf("PROXY header: %w", err)
	}
	if string(head) == "PROXY " {
		for n := 0; head[len(head)-1] != '\n'; n++ {
			if n > 107 {
				return errors.New("PROXY header of version 1 without an end")
			}
			var b [1]byte
			if _, err := io.ReadFull(r, b[:]); err != nil {
				return fmt.Errorf("PROXY header: %w", err)
			}
			head = append(head, b[0])
		}
		return nil
	}
	rest := make([]byte, 10)
	if _, err := io.ReadFull(r, rest); err != nil {
		return fmt.Errorf("PROXY header: %w", err)
	}
	head = append(head, rest...)
	if string(head[:12]) != proxySignature || head[12]>>4 != 2 || head[12]&15 > 1 {
		return fmt.Errorf("no PROXY header: %q", head)
	}
	_, err := io.CopyN(io.Discard, r, int64(binary.BigEndian.Uint16(head[14:])))
	return err
}

// http answers requests until the client ends.
func (s *server) http(c io.ReadWriter) {
	br := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		body := s.o.Name + "\n"
		if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil || r.Close {
			return
		}
	}
}

// The packets of Minecraft's protocol that a status exchange and a login begin with.
const (
	packetHandshake  = 0
	packetRequest    = 0
	packetPing       = 1
	packetDisconnect = 0
	packetEncryption = 1

	nextStatus = 1
	nextLogin  = 2
)

// status speaks one exchange: the server list ping as a whole, or a login up to its answer.
// A client that says nothing before it goes is no fault; one that stops half-way is.
func (s *server) status(c io.ReadWriter) error {
	br := bufio.NewReader(c)
	if _, err := br.Peek(1); err != nil {
		return nil //nolint:nilerr // it only looked whether anybody listens
	}
	id, p, err := readPacket(br)
	if err != nil || id != packetHandshake {
		return fmt.Errorf("handshake: packet %d: %w", id, err)
	}
	next := byte(0)
	if b := p.Bytes(); len(b) > 0 {
		next = b[len(b)-1]
	}
	switch next {
	case nextStatus:
		return s.ping(br, c)
	case nextLogin:
		if id, _, err := readPacket(br); err != nil || id != 0 {
			return fmt.Errorf("login start: packet %d: %w", id, err)
		}
		if s.o.Reject {
			return writePacket(c, packetDisconnect, text(`{"text":"Unable to verify player details"}`))
		}
		return writePacket(c, packetEncryption, append(text(""), 0, 0))
	}
	return fmt.Errorf("handshake asks for %d", next)
}

func (s *server) ping(br *bufio.Reader, c io.Writer) error {
	if id, _, err := readPacket(br); err != nil || id != packetRequest {
		return fmt.Errorf("status request: packet %d: %w", id, err)
	}
	answer, err := json.Marshal(map[string]any{
		"version":     map[string]any{"name": "lab", "protocol": 765},
		"players":     map[string]any{"max": 20, "online": 0},
		"description": map[string]any{"text": s.o.Name},
	})
	if err != nil {
		return err
	}
	if err := writePacket(c, packetRequest, text(string(answer))); err != nil {
		return err
	}
	id, p, err := readPacket(br)
	if err != nil || id != packetPing {
		return fmt.Errorf("ping: packet %d: %w", id, err)
	}
	return writePacket(c, packetPing, p.Bytes())
}

// text is a string with its length before it.
func text(s string) []byte { return append(binary.AppendUvarint(nil, uint64(len(s))), s...) }

// longest bounds a packet.
const longest = 1 << 16

func readPacket(br *bufio.Reader) (uint64, *bytes.Buffer, error) {
	n, err := binary.ReadUvarint(br)
	if err != nil {
		return 0, nil, err
	}
	if n > longest {
		return 0, nil, fmt.Errorf("a packet of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(br, b); err != nil {
		return 0, nil, err
	}
	p := bytes.NewBuffer(b)
	id, err := binary.ReadUvarint(p)
	return id, p, err
}

func writePacket(w io.Writer, id uint64, body []byte) error {
	b := binary.AppendUvarint(nil, id)
	b = append(b, body...)
	_, err := w.Write(append(binary.AppendUvarint(nil, uint64(len(b))), b...))
	return err
}
