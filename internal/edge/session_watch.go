package edge

import (
	"context"
	"time"
)

// Reload takes in at once what others wrote into the state: what a predecessor knew when it
// let go. It moves nothing.
func (s *Session) Reload() { s.reload() }

// Look is Refresh that says what it decided.
func (s *Session) Look(ctx context.Context) (Result, error) {
	s.reload()
	if err := s.lookAround(ctx); err != nil {
		return Result{}, err
	}
	return s.act(ctx, &wish{prepare: func(*Input) bool { return true }})
}

// Compare looks at one parity group, unless somebody did so less than its Every ago. g is
// one of Config.Parity.
func (s *Session) Compare(ctx context.Context, g ParityGroup) (Result, error) {
	if s.Parity == nil {
		return Result{}, nil
	}
	s.mu.Lock()
	last, ok := s.in.Memory.Parity[g.Name]
	s.mu.Unlock()
	if ok && s.Now().Unix()-last.At < int64(g.Every/time.Second) {
		return Result{}, nil
	}
	found := s.Parity(ctx, g)
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	return s.act(ctx, &wish{prepare: func(in *Input) bool {
		if in.Parity == nil {
			in.Parity = map[string]Parity{}
		}
		in.Parity[g.Name] = found
		return true
	}})
}
