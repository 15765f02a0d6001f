package cli

import (
	"context"
	"time"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/notify"
)

// alerts tells people of what happened, beside the run: nothing waits for them before its end.
type alerts struct {
	app *app
	to  *notify.Notifier
}

func (a *app) startAlerts(c config.Config) *alerts {
	return &alerts{app: a, to: notify.New(c.Alerts, a.Now)}
}

// Alert implements edge.Alerts.
func (l *alerts) Alert(al edge.Alert) {
	l.app.Log.Info("alert", "kind", al.Kind, "object", al.Object, "level", al.Level, "text", al.Text)
	l.to.Alert(al)
}

// close gives what is still queued its bounded time. What could not be delivered is a warning.
func (l *alerts) close(ctx context.Context) {
	if err := l.to.Close(context.WithoutCancel(ctx)); err != nil {
		l.app.warnf("%s", err)
	}
}

// mode makes an alert of a change of mode; other events make none.
func (l *alerts) mode(ev journal.Event, now time.Time) {
	if ev.Kind != "mode" {
		return
	}
	level := edge.LevelWarning
	if ev.To == "normal" {
		level = edge.LevelInfo
	}
	l.to.Alert(edge.Alert{
		Kind: "mode", Object: "egress", Level: string(level), At: now,
		Text: "egress " + ev.From + " -> " + ev.To + ": " + ev.Reason,
	})
}
