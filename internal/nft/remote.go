package nft

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/run"
)

// Remote is a replica's table behind a command that takes nft's language on its stdin, such
// as `ssh core-02 nft -i`. The command is started once, when it is first needed, and again
// when it has ended; its deadline is the context's.
func Remote(name string, argv []string, o Options) edge.Replicated {
	m := &remote{argv: argv, env: home(argv), most: enough}
	return newReplica(name, o, m, func() error { m.drop(); return nil })
}

type remote struct {
	argv []string
	env  []string
	most int // bytes that one process is told
	// Exchanges take turns, but the end of a context may come at any time.
	mu   sync.Mutex
	line *stream
}

// home keeps an nft on this machine from writing all that it was told into a file of its
// home, as it does at the end of its input. Other transports may need a home themselves.
func home(argv []string) []string {
	if len(argv) > 0 {
		switch filepath.Base(argv[0]) {
		case "nft", "ip", "nsenter":
			return []string{"HOME=/dev/null"}
		}
	}
	return nil
}

// exchange asks once. A line that was there before and turns out to be dead is opened anew,
// once; what was sent may have been done then.
func (m *remote) exchange(ctx context.Context, commands ...string) (answer, error) {
	for {
		line, fresh, err := m.open()
		if err != nil {
			return answer{}, err
		}
		a, err := line.ask(ctx, commands)
		if err == nil {
			m.renew(line)
			return a, nil
		}
		m.drop()
		if fresh || !errors.Is(err, errEnded) || ctx.Err() != nil {
			return answer{}, err
		}
	}
}

func (m *remote) open() (line *stream, fresh bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.line != nil && !m.line.ended() {
		return m.line, false, nil
	}
	if m.line != nil {
		m.line.kill()
	}
	p, err := run.Start(m.argv, run.Options{Env: m.env})
	if err != nil {
		return nil, false, err
	}
	m.line = newStream(m.argv[0], p)
	return m.line, true, nil
}

// enough is what one nft is told at the most: it remembers every line.
const enough = 4 << 20 // bytes

// renew begins another line beside an exchange, so that none waits for its start.
func (m *remote) renew(line *stream) {
	if line.sent < m.most {
		return
	}
	m.drop()
	_, _, _ = m.open() // an error is found again, and told, when there is something to ask
}

// drop ends a line on which answers may follow that belong to no question.
func (m *remote) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.line != nil {
		m.line.kill()
	}
	m.line = nil
}

const listTable = "list table inet " + tableName

func (m *remote) look(ctx context.Context) (found, error) {
	a, err := m.exchange(ctx, listTable)
	if err != nil {
		return found{}, err
	}
	t, drift, err := ParseListing(a.out)
	switch {
	case err == nil:
		return found{drift: drift, table: t}, nil
	case errors.Is(err, errNoListing) && strings.Contains(a.complaints, "Error: No such file or directory"):
		return found{absent: true}, nil
	default:
		return found{}, errors.Join(err, complaint(a.complaints))
	}
}

func (m *remote) load(ctx context.Context, want edge.Table) (found, error) {
	a, err := m.exchange(ctx, oneLine(replacement(text(want))), listTable)
	if err != nil {
		return found{}, err
	}
	if err := complaint(a.complaints); err != nil {
		return found{}, err
	}
	run.Point(ctx, "edge.loaded")
	t, drift, err := ParseListing(a.out)
	return found{drift: drift, table: t}, err
}

func (m *remote) move(ctx context.Context, changes []change) (edge.Table, error) {
	script := []string{commands(changes)}
	for _, c := range changes {
		for _, s := range c.kind.sets() {
			word, _, _ := strings.Cut(s.head(), " ")
			script = append(script, fmt.Sprintf("list %s inet %s %s", word, tableName, s.name))
		}
	}
	a, err := m.exchange(ctx, script...)
	if err != nil {
		return edge.Table{}, err
	}
	if err := complaint(a.complaints); err != nil {
		return edge.Table{}, err
	}
	run.Point(ctx, "edge.moved")
	var l listing
	for _, block := range tables(a.out) {
		one, err := parse(block)
		if err != nil {
			return edge.Table{}, err
		}
		l.objects = append(l.objects, one.objects...)
	}
	t, _ := l.table()
	return t, nil
}

// complaint is the first error among what nft wrote; nil = there is none.
func complaint(text string) error {
	_, text, ok := strings.Cut(text, "Error: ")
	if !ok {
		return nil
	}
	message, rest, _ := strings.Cut(text, "\n")
	quoted, _, _ := strings.Cut(rest, "\n")
	const most = 200
	if len(quoted) > most {
		quoted = quoted[:most] + "…"
	}
	return fmt.Errorf("nft: %s: %s", strings.TrimSpace(message), strings.TrimSpace(quoted))
}
