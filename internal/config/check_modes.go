package config

import (
	"github.com/shunt-net/shunt/internal/egress"
)

func (r *reader) checkModes(c egress.ModesConfig) {
	const at = "egress.modes."
	r.between(at, "threshold", c.Threshold, 1, 1000)
	r.positive(at, "window", c.Window)
	r.positive(at, "cooldown", c.Cooldown)
	r.positive(at, "retry_min", c.RetryMin)
	if c.RetryMin > 0 && c.RetryMax < c.RetryMin {
		r.complain(at+"retry_max", durationText(c.RetryMax)+" is under retry_min", "write "+durationText(c.RetryMin)+" or more")
	}
}
