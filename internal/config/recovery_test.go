package config

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
)

func TestRecoveryIsCheckedKeyByKey(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*egress.RecoveryConfig)
		want   string // "" = nothing is wrong
	}{
		"as it comes":          {func(*egress.RecoveryConfig) {}, ""},
		"no pool":              {func(r *egress.RecoveryConfig) { r.Order = nil }, ""},
		"a relative folder":    {func(r *egress.RecoveryConfig) { r.Dir = "strategies.d" }, "egress.recovery.dir"},
		"no time":              {func(r *egress.RecoveryConfig) { r.Timeout = -time.Second }, "egress.recovery.timeout"},
		"nothing at once":      {func(r *egress.RecoveryConfig) { r.Parallel = 0 }, "egress.recovery.parallel"},
		"a list named twice":   {func(r *egress.RecoveryConfig) { r.Order = append(r.Order, egress.PoolNameAll) }, "egress.recovery.order"},
		"a useless resolver":   {func(r *egress.RecoveryConfig) { r.Resolvers = []netip.Addr{netip.MustParseAddr("0.0.0.0")} }, "egress.recovery.resolvers"},
		"no resolver at hand":  {func(r *egress.RecoveryConfig) { r.Resolvers = nil }, ""},
		"only the working one": {func(r *egress.RecoveryConfig) { r.Order = []egress.PoolName{egress.PoolNameWorking} }, ""},
	} {
		conf := Default()
		c.change(&conf.Egress.Recovery)
		var got []string
		for _, x := range Check(conf) {
			if strings.HasPrefix(x.Key, "egress.recovery") {
				got = append(got, x.Key)
			}
		}
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], c.want)) {
			t.Errorf("%s: complaints about %v, want %q", name, got, c.want)
		}
	}
}
