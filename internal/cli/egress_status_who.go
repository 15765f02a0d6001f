package cli

import (
	"context"
	"strings"
	"unicode"

	"github.com/shunt-net/shunt/internal/egress"
)

// Direct takes an operator's word about direct, with who gives it: status tells it to the
// next one.
func (e *egressEnv) Direct(ctx context.Context, order egress.DirectOrder, dryRun bool) (egress.Outcome, error) {
	if s, ok := e.Sources.(sources); ok && order.By == "" {
		order.By = operator(s.app.Env)
	}
	return e.Env.Direct(ctx, order, dryRun)
}

// operator is the user who called the command, also through sudo, as the environment names
// him; "" = it does not.
func operator(env func(string) string) string {
	const longest = 64
	for _, name := range []string{"SUDO_USER", "LOGNAME", "USER"} {
		who := strings.Map(func(r rune) rune {
			if unicode.IsGraphic(r) && !unicode.IsSpace(r) {
				return r
			}
			return -1
		}, env(name))
		if who != "" {
			return who[:min(len(who), longest)]
		}
	}
	return ""
}
