package knock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
)

const (
	// loginEvery is the least time between two logins at one candidate. Servers limit
	// logins of one address to one in 3 or 4 seconds; between two, the last word counts.
	loginEvery = 5 * time.Second
	loginName  = "shunt_probe"
	// pongWait bounds the wait for the answer to the ping: the status said all there is to know.
	pongWait = 100 * time.Millisecond
)

// login is the last word of a candidate on logins.
type login struct {
	at     time.Time // of the last attempt
	known  bool
	taken  bool
	reason string
}

// statusPing asks as a client does that shows its list of servers: the status, then a ping,
// which servers that limit connections want to see, then the end. With Login it then asks,
// on a connection of its own, to be let in, and leaves at the first answer.
func (p *Prober) statusPing(ctx context.Context, k *knocking) {
	version, ok := k.status(ctx)
	if !ok {
		return
	}
	k.good()
	if !k.target.Probe.Login {
		return
	}
	l := p.lastLogin(k.target.Key)
	if l.at.IsZero() || clock().Sub(l.at) >= loginEvery {
		l.at = clock()
		l = k.login(ctx, version, l)
		p.mu.Lock()
		p.logins[k.target.Key] = l
		p.mu.Unlock()
	}
	if l.known && !l.taken {
		k.a.Accepts, k.a.Reason = false, l.reason
	}
}

func (p *Prober) lastLogin(k edge.Key) login {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logins[k]
}

// host is the address that the client says it came for.
func (k *knocking) host() string {
	if name := k.target.Probe.ServerName; name != "" {
		return name
	}
	return k.target.Addr.Addr().Unmap().WithZone("").String()
}

// status does the exchange and reports the server's protocol version; false = it failed
// and is judged.
func (k *knocking) status(ctx context.Context) (version int32, ok bool) {
	c := k.connect(ctx)
	if c == nil {
		return 0, false
	}
	defer c.Close()
	out := handshake(-1, k.host(), k.target.Addr.Port(), 1)
	out = append(out, packet(0, nil)...)
	r, err := k.say(c, out)
	if err != nil {
		k.talkFailed(ctx, err, c.got > 0)
		return 0, false
	}
	id, fields, err := readPacket(r)
	if err == nil && id != 0 {
		err = fmt.Errorf("packet %d instead of a status", id)
	}
	if err == nil {
		version, err = readStatus(fields)
	}
	if err != nil {
		k.pingFailed(ctx, err, c.got > 0)
		return 0, false
	}
	k.heard()
	// Not every server answers the ping; that it was asked is what matters.
	_ = c.SetReadDeadline(earlier(k.end, clock().Add(pongWait)))
	if _, err := c.Write(packet(1, []byte("shunt/v1"))); err == nil {
		_, _, _ = readPacket(r)
	}
	return version, true
}

// say writes the beginning of a talk in one segment.
func (k *knocking) say(c *conn, out []byte) (*bufio.Reader, error) {
	out = append([]byte(k.target.Probe.Greeting()), out...)
	if _, err := c.Write(out); err != nil {
		return nil, err
	}
	return bufio.NewReader(c), nil
}

// pingFailed is talkFailed for answers that came and were none.
func (k *knocking) pingFailed(ctx context.Context, err error, begun bool) {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), closed(err):
		k.talkFailed(ctx, err, begun)
	default:
		k.miss(clean("does not speak Minecraft: " + err.Error()))
	}
}

// login asks to be let in and reports what is known then; before = what was known.
func (k *knocking) login(ctx context.Context, version int32, before login) login {
	c, err := dial(ctx, k.target.Addr, k.end)
	if err != nil {
		return before // the status has just come: whatever this is, it is no word on logins
	}
	defer c.Close()
	out := handshake(version, k.host(), k.target.Addr.Port(), 2)
	r, err := k.say(c, append(out, loginStart(version, loginName)...))
	if err != nil {
		return before
	}
	id, fields, err := readPacket(r)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		if k.ours(ctx, clock()) != "" {
			return before
		}
		return before.refused("login: no answer within " + k.limit.String())
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return before // as one does that limits connections
	case err != nil:
		return before.refused(clean("login: " + err.Error()))
	}
	return before.answered(id, fields)
}

func (l login) refused(reason string) login {
	l.known, l.taken, l.reason = true, false, reason
	return l
}

// answered judges the first packet that follows a wish to be let in.
func (l login) answered(id int32, fields []byte) login {
	switch id {
	case 0x00: // disconnect
		s, err := text(fields)
		if err != nil {
			return l.refused("login refused: " + err.Error())
		}
		why := chat(s)
		if throttled(why) {
			return l
		}
		return l.refused("login refused: " + why)
	case 0x01, 0x02, 0x03, 0x04, 0x05: // encryption, success, compression, a plugin's question, a cookie
		l.known, l.taken, l.reason = true, true, ""
		return l
	default:
		return l.refused(fmt.Sprintf("login answered by packet %d", id))
	}
}

// throttled says whether a refusal is about how often we ask.
func throttled(why string) bool {
	why = strings.ReplaceAll(strings.ToLower(why), "-", " ")
	for _, s := range []string{"too fast", "throttl", "rate limit", "ratelimit", "too many", "wait before"} {
		if strings.Contains(why, s) {
			return true
		}
	}
	return false
}
