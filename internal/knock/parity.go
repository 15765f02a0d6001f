package knock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/run"
)

const (
	parityLimit   = 16 << 20 // bytes of one member
	parityAtOnce  = 8
	parityTimeout = 10 * time.Second // of one member where the group does not say
	shownDigits   = 12
)

// Parity reads each member of a group and compares their SHA-256. Equal says that at least
// one could be read and that none of those differs from another or from the reference; what
// could not be read is in Errors. Nothing of a member's content is kept, not in errors
// either: of a command that failed only the status is told.
func (p *Prober) Parity(ctx context.Context, g edge.ParityGroup) edge.Parity {
	if g.Timeout <= 0 {
		g.Timeout = parityTimeout
	}
	var (
		sums   = make([]string, len(g.Members))
		errs   = make([]error, len(g.Members))
		wg     sync.WaitGroup
		places = make(chan struct{}, parityAtOnce)
	)
	for i, m := range g.Members {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			sums[i], errs[i] = member(ctx, m, g.Timeout)
		})
	}
	wg.Wait()
	return compare(g, sums, errs, p.now().Unix())
}

func compare(g edge.ParityGroup, sums []string, errs []error, at int64) edge.Parity {
	out := edge.Parity{At: at}
	want := strings.ToLower(g.Reference)
	differs := false
	for i, m := range g.Members {
		if errs[i] != nil {
			if out.Errors == nil {
				out.Errors = map[string]string{}
			}
			out.Errors[m.Name] = errs[i].Error()
			continue
		}
		if out.Hashes == nil {
			out.Hashes = map[string]string{}
		}
		out.Hashes[m.Name] = sums[i][:shownDigits]
		if want == "" {
			want = sums[i]
		}
		differs = differs || !strings.HasPrefix(sums[i], want) // a reference may have been cut
	}
	out.Equal = len(out.Hashes) > 0 && !differs
	return out
}

// member hashes one member within its time.
func member(ctx context.Context, m edge.ParityMember, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch {
	case m.Path != "" && len(m.Command) > 0, m.Path == "" && len(m.Command) == 0:
		return "", errors.New("exactly one of path and command is needed")
	case m.Path != "":
		return hashFile(ctx, m.Path)
	}
	return hashCommand(ctx, m.Command)
}

// hash reads to the end and refuses what is too long.
func hash(r io.Reader) (string, error) {
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(r, parityLimit+1))
	if err != nil {
		return "", err
	}
	if n > parityLimit {
		return "", fmt.Errorf("more than %d MiB", parityLimit>>20)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// hashFile reads a file in a goroutine that is left behind when the file's server hangs.
func hashFile(ctx context.Context, path string) (string, error) {
	type result struct {
		sum string
		err error
	}
	done := make(chan result, 1)
	go func() {
		sum, err := hashRegular(path)
		done <- result{sum, err}
	}()
	select {
	case r := <-done:
		return r.sum, r.err
	case <-ctx.Done():
		return "", fmt.Errorf("not read in time: %w", ctx.Err())
	}
}

func hashRegular(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not block
	if err != nil {
		return "", cause(err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", cause(err)
	case !info.Mode().IsRegular():
		return "", errors.New("not a regular file")
	case info.Size() > parityLimit:
		return "", fmt.Errorf("more than %d MiB", parityLimit>>20)
	}
	sum, err := hash(f)
	return sum, cause(err)
}

// cause is the error without the path, which the configuration has.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// hashCommand hashes what a command prints, as it comes: nothing is kept.
func hashCommand(ctx context.Context, argv []string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	p, err := run.Start(argv, run.Options{})
	if err != nil {
		return "", err
	}
	defer p.Kill()
	_ = p.Stdin.Close()
	stop := context.AfterFunc(ctx, p.Kill)
	defer stop()
	go func() { _, _ = io.Copy(io.Discard, p.Stderr) }() // ends with the process
	sum, err := hash(p.Stdout)
	late := func() error { return fmt.Errorf("command %s: not ended in time: %w", argv[0], ctx.Err()) }
	if err != nil {
		if ctx.Err() != nil {
			return "", late()
		}
		return "", fmt.Errorf("command %s: %w", argv[0], cause(err))
	}
	select {
	case <-p.Ended():
	case <-ctx.Done():
		return "", late()
	}
	var exit *run.ExitError
	if err := p.Err(); errors.As(err, &exit) {
		return "", fmt.Errorf("command %s: exit status %d", argv[0], exit.Code)
	} else if err != nil {
		return "", fmt.Errorf("command %s: %w", argv[0], err)
	}
	if ctx.Err() != nil {
		return "", late()
	}
	return sum, nil
}
