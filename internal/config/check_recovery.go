package config

import (
	"fmt"
	"path/filepath"

	"github.com/shunt-net/shunt/internal/egress"
)

func (r *reader) checkRecovery(c egress.RecoveryConfig) {
	const at = "egress.recovery."
	if !filepath.IsAbs(c.Dir) {
		r.complain(at+"dir", quote(c.Dir)+" is not an absolute path", "write it such as /etc/shunt/strategies.d; it need not exist")
	}
	r.positive(at, "timeout", c.Timeout)
	r.between(at, "parallel", c.Parallel, 1, 256)
	seen := map[egress.PoolName]bool{}
	for i, n := range c.Order {
		if seen[n] {
			r.complain(fmt.Sprintf("%sorder[%d]", at, i), quote(string(n))+" stands there twice", "name each list once")
		}
		seen[n] = true
	}
	r.addresses(at+"resolvers", c.Resolvers, false)
}
