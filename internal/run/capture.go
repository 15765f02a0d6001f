package run

import "sync"

// capture keeps the beginning of a stream and drains the rest, so that the writer never blocks.
type capture struct {
	mu        sync.Mutex
	limit     int
	kept      []byte
	truncated bool
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(p)
	if room := c.limit - len(c.kept); n > room {
		c.truncated = true
		p = p[:room]
	}
	c.kept = append(c.kept, p...)
	return n, nil
}

func (c *capture) result() (kept []byte, truncated bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept, c.truncated
}
