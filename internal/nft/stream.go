package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shunt-net/shunt/internal/run"
)

// nft says nothing when a command has been done, so each exchange ends with two commands
// that it answers always: one on stdout, and one that it does not know, with a number of
// its own, on stderr.
const (
	question = "describe ip daddr"
	reply    = "payload expression, datatype ipv4_addr"
	marker   = "shunt_end_of_answer_"
)

const (
	maxAnswer = 64 << 20 // bytes of one answer
	// maxComplaints is how much of the beginning and of the end of an answer's stderr is kept:
	// nft repeats the line that it does not like, and puts marks below all of it.
	maxComplaints = 8 << 10 // bytes
	// lateComplaints bounds the first wait for the end of stderr when stdout has already ended:
	// two pipes may be carried at different speed, and some transports lose stderr.
	lateComplaints = time.Second
	lastWords      = 50 * time.Millisecond
)

// errEnded says that the command on the other end has ended.
var errEnded = errors.New("ended")

// answer is what an exchange gave.
type answer struct {
	out        string
	complaints string // stderr, perhaps without its middle
}

// stream is a lasting process that is asked by lines.
type stream struct {
	name string
	proc *run.Process
	n    int // of the exchange
	sent int // bytes
	deaf bool

	mu   sync.Mutex
	news chan struct{} // holds a token when something was read
	out  strings.Builder
	errs strings.Builder
	tail string // of stderr
	over int    // bytes of stderr that errs had no room for
	seen int    // number of the last marker
	eof  bool   // of stdout
	mute bool   // stderr has ended
}

func newStream(name string, p *run.Process) *stream {
	s := &stream{name: name, proc: p, news: make(chan struct{}, 1)}
	go s.readOut()
	go s.readErrs()
	return s
}

func (s *stream) tell() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

func (s *stream) readOut() {
	b := make([]byte, 64<<10)
	for {
		n, err := s.proc.Stdout.Read(b)
		s.mu.Lock()
		if s.out.Len() < maxAnswer {
			s.out.Write(b[:n])
		}
		s.eof = err != nil
		s.mu.Unlock()
		s.tell()
		if err != nil {
			return
		}
	}
}

func (s *stream) readErrs() {
	b := make([]byte, 16<<10)
	for {
		n, err := s.proc.Stderr.Read(b)
		s.mu.Lock()
		s.hear(string(b[:n]))
		s.mute = err != nil
		s.mu.Unlock()
		s.tell()
		if err != nil {
			return
		}
	}
}

// hear keeps the beginning and the end of what stderr said, and looks for the marker in all
// of it.
func (s *stream) hear(text string) {
	room := min(len(text), max(0, maxComplaints-s.errs.Len()))
	s.errs.WriteString(text[:room])
	s.over += len(text) - room
	s.tail += text
	if n := lastMarker(s.tail); n > 0 {
		s.seen = n
	}
	s.tail = s.tail[max(0, len(s.tail)-maxComplaints):]
}

// complaints is what stderr said in this exchange; the caller holds the lock.
func (s *stream) complaints() string {
	text := s.errs.String()
	if s.over > 0 {
		text += "\n" + s.tail[max(0, len(s.tail)-s.over):]
	}
	return s.between(text)
}

// lastMarker is the number of the last whole marker in a text; 0 = there is none.
func lastMarker(text string) (n int) {
	for {
		_, rest, ok := strings.Cut(text, marker)
		if !ok {
			return n
		}
		number, _, whole := strings.Cut(rest, "\n")
		if m := 0; whole {
			if _, err := fmt.Sscanf(number, "%d", &m); err == nil {
				n = m
			}
		}
		text = rest
	}
}

// ended says whether the process has ended.
func (s *stream) ended() bool {
	select {
	case <-s.proc.Ended():
		return true
	default:
		return false
	}
}

// kill ends the process. One that may end by itself writes all that it was ever told into
// a file of its home.
func (s *stream) kill() { s.proc.Kill() }

// ask sends commands, one a line, and collects the answer.
func (s *stream) ask(ctx context.Context, commands []string) (answer, error) {
	s.mu.Lock()
	s.out.Reset()
	s.errs.Reset()
	s.over = 0
	s.mu.Unlock()
	s.n++
	text := strings.Join(commands, "\n") + "\n" + question + "\n" + fmt.Sprintf("%s%d\n", marker, s.n)
	at, _ := ctx.Deadline()
	if err := s.proc.Stdin.SetWriteDeadline(at); err != nil {
		return answer{}, s.broken(err)
	}
	interrupt := context.AfterFunc(ctx, func() { _ = s.proc.Stdin.SetWriteDeadline(time.Unix(1, 0)) })
	s.sent += len(text)
	var err error
	for _, piece := range pieces(text) { // what the context ends here is no whole command; see commands
		if _, err = s.proc.Stdin.WriteString(piece); err != nil {
			break
		}
	}
	interrupt()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return answer{}, s.late(ctx)
	}
	if err != nil {
		return answer{}, s.broken(err)
	}
	if err := s.await(ctx, s.answered); err != nil {
		return answer{}, err
	}
	if err := s.awaitComplaints(ctx); err != nil {
		return answer{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.out.String()
	a := answer{out: out[:strings.LastIndex(out, reply)], complaints: s.complaints()}
	if s.seen < s.n { // perhaps both are one stream
		a.complaints += s.between(a.out)
	}
	return a, nil
}

// awaitComplaints waits for the end of stderr. Where none has ever come the wait is short,
// and the last one.
func (s *stream) awaitComplaints(ctx context.Context) error {
	s.mu.Lock()
	s.deaf = s.deaf && s.seen == 0
	deaf, heard := s.deaf, s.seen > 0
	s.mu.Unlock()
	told := func() bool { return s.seen >= s.n || s.mute }
	switch {
	case deaf:
		return nil
	case heard:
		return s.await(ctx, told)
	}
	bound, cancel := context.WithTimeout(ctx, lateComplaints)
	defer cancel()
	s.deaf = s.await(bound, told) != nil
	return nil
}

func (s *stream) answered() bool {
	out := s.out.String()
	// The reply is at the end, so there is no need to search all of a long listing each time.
	return strings.Contains(out[max(0, len(out)-4096):], reply)
}

// between is what was written after the last exchange's marker and before this one's,
// without the complaint that each marker causes.
func (s *stream) between(text string) string {
	if _, rest, ok := strings.Cut(text, fmt.Sprintf("%s%d\n", marker, s.n-1)); ok {
		text = rest
	}
	before, _, ok := strings.Cut(text, fmt.Sprintf("%s%d", marker, s.n))
	if !ok {
		return before
	}
	if i := strings.LastIndex(before, "Error: "); i >= 0 {
		return before[:i]
	}
	return before[:strings.LastIndexByte(before, '\n')+1] // the marker's own line
}

// await waits until what was read is enough; done is called with the lock held.
func (s *stream) await(ctx context.Context, done func() bool) error {
	for {
		s.mu.Lock()
		enough, eof := done(), s.eof
		s.mu.Unlock()
		switch {
		case enough:
			return nil
		case eof:
			return s.broken(nil)
		}
		select {
		case <-s.news:
		case <-ctx.Done():
			return s.late(ctx)
		}
	}
}

// said is the last line of what the process wrote, for an error.
func (s *stream) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range []string{s.complaints(), s.out.String()} {
		text = strings.TrimSpace(text)
		if i := strings.LastIndexByte(text, '\n'); i >= 0 {
			text = strings.TrimSpace(text[i+1:])
		}
		const most = 200
		if len(text) > most {
			text = text[:most] + "…"
		}
		if text != "" {
			return ": " + text
		}
	}
	return ""
}

func (s *stream) late(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		err = os.ErrDeadlineExceeded
	}
	return fmt.Errorf("command %s: no answer in time%s: %w", s.name, s.said(), err)
}

// broken says how the process ended, and waits a moment for that and for its last words.
func (s *stream) broken(cause error) error {
	bound, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	for s.hears() && bound.Err() == nil {
		select {
		case <-s.news:
		case <-bound.Done():
		}
	}
	s.proc.Stop(lastWords)
	err := s.proc.Err()
	switch {
	case err != nil:
	case cause != nil && !errors.Is(cause, syscall.EPIPE): // that it has ended is said better
		err = fmt.Errorf("command %s: %w", s.name, cause)
	default:
		err = fmt.Errorf("command %s: exit status 0", s.name)
	}
	return fmt.Errorf("%w%s: %w", err, s.said(), errEnded)
}

func (s *stream) hears() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.mute
}
