package edge

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/shunt-net/shunt/internal/run"
)

// fileID tells whether somebody else wrote a file: each write makes a new one.
type fileID struct {
	inode uint64
	size  int64
	at    time.Time
}

func idOf(path string) fileID {
	fi, err := os.Stat(path)
	if err != nil {
		return fileID{}
	}
	id := fileID{size: fi.Size(), at: fi.ModTime()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		id.inode = st.Ino
	}
	return id
}

// Refresh looks again: holds, tables, leases, addresses, and what others remember. What is
// not as it should be is mended.
func (s *Session) Refresh(ctx context.Context) error {
	res, err := s.Look(ctx)
	if err != nil {
		return err
	}
	return res.Partial
}

// reload takes in what others wrote: holds always, the memory where its file is another.
func (s *Session) reload() {
	s.paper.Lock() // else what is written just now would look like a change that another made
	defer s.paper.Unlock()
	holds, are, herr := s.readHolds()
	id := idOf(s.State.Path(memoryFile))
	var disk Memory
	var merr error
	s.mu.Lock()
	changed := id != s.seen
	s.mu.Unlock()
	if changed {
		merr = s.State.ReadJSON(memoryFile, &disk)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in.Damage, s.damaged = nil, nil
	for _, err := range []error{merr, herr} {
		if err != nil {
			s.in.Damage = append(s.in.Damage, err.Error())
			s.damaged = errors.Join(s.damaged, err)
		}
	}
	switch {
	case are == HoldsWhole && s.in.HoldsAre == HoldsWhole && sameHolds(holds, s.in.Holds, s.Now().UnixMilli()):
	case are == HoldsWhole:
		s.in.Holds, s.in.HoldsAre = holds, are
	case s.in.HoldsAre == HoldsLost: // what was read whole once is still known
		s.in.Holds, s.in.HoldsAre = holds, are
	}
	if changed && merr == nil {
		s.syncVetoes()
		s.adoptMemory(merge(disk, s.disk, s.in.Memory))
		s.disk, s.seen = disk.clone(), id
	}
}

// lookAround sees the tables. A replica that is slow is seen as it was until it answers or
// its time is up.
func (s *Session) lookAround(ctx context.Context) error {
	type sight struct {
		at   int
		view View
	}
	views := make(chan sight, len(s.lines))
	for i, l := range s.lines {
		go func() { views <- sight{i, l.observe(ctx)} }()
	}
	host, err := s.Sight.Look(ctx, s.Config)
	take := func(v sight) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.in.Views = slices.Clone(s.in.Views)
		s.in.Views[v.at] = v.view
	}
	enough := time.NewTimer(patience)
	defer enough.Stop()
	local, late := s.self() < 0, false
	left := len(s.lines)
	for left > 0 && (!late || !local) {
		select {
		case v := <-views:
			local = local || s.lines[v.at].local
			take(v)
			left--
		case <-enough.C:
			late = true
		}
	}
	if left > 0 {
		s.work.Go(func() {
			for range left {
				take(<-views)
			}
		})
	}
	if err == nil {
		s.mu.Lock()
		s.in.Host = host
		s.mu.Unlock()
	}
	return cmp.Or(err, ctx.Err())
}

// Save persists health every few seconds, off the fast path.
func (s *Session) Save(ctx context.Context) error {
	s.paper.Lock()
	defer s.paper.Unlock()
	return s.persist(ctx)
}

// persist writes the difference to what is on the disk. The caller holds paper.
func (s *Session) persist(ctx context.Context) error {
	s.mu.Lock()
	s.syncVetoes()
	was, next := s.disk.clone(), s.in.Memory.clone()
	s.mu.Unlock()
	var m Memory
	err := s.State.UpdateJSON(ctx, memoryFile, &m, func() error {
		m = merge(m, was, next)
		return nil
	})
	if err != nil {
		return err
	}
	run.Point(ctx, "edge.remembered")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disk, s.seen = m.clone(), idOf(s.State.Path(memoryFile))
	return nil
}

// Close waits, at most until ctx ends, for what is under way, and saves. The ways to the
// replicas are the caller's to close.
func (s *Session) Close(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	err := s.Save(context.WithoutCancel(ctx))
	if errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}
