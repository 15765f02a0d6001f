package knock

import (
	"sync"
	"time"
)

const (
	pulseEvery = 5 * time.Millisecond
	// tolerated is a delay that any busy machine has.
	tolerated = 3 * time.Millisecond
)

// pulse adds up the time in which this process wanted to run and did not. It beats only
// while somebody listens.
type pulse struct {
	mu    sync.Mutex
	users int
	wants time.Time // of the next beat
	sum   time.Duration
	stop  chan struct{}
}

func (p *pulse) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
	if p.users > 1 {
		return
	}
	p.wants = clock().Add(pulseEvery)
	p.stop = make(chan struct{})
	go p.beat(p.stop)
}

func (p *pulse) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
	if p.users == 0 {
		close(p.stop)
	}
}

// lost is the lateness so far, that of a beat which is overdue with it.
func (p *pulse) lost() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sum + lateness(p.wants)
}

func (p *pulse) beat(stop chan struct{}) {
	tick := time.NewTimer(pulseEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		if p.stop != stop { // others listen to the next beat by now
			p.mu.Unlock()
			return
		}
		p.sum += lateness(p.wants)
		p.wants = clock().Add(pulseEvery)
		p.mu.Unlock()
		tick.Reset(pulseEvery)
	}
}

func lateness(wanted time.Time) time.Duration {
	if d := clock().Sub(wanted); d > tolerated {
		return d
	}
	return 0
}
