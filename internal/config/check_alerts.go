package config

import (
	"fmt"
	"net/url"
	"regexp"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

func (r *reader) checkAlerts(a edge.AlertsConfig) {
	if a.MinGap < 0 || a.MinGap > 24*time.Hour {
		r.complain("alerts.min_gap", durationText(a.MinGap)+" is out of range", "write 0s (no limit) to 24h")
	}
	names := map[string]int{}
	for i := range a.Targets {
		at := fmt.Sprintf("alerts.targets[%d]", i)
		r.name(at, a.Targets[i].Name, names, i)
		r.checkTarget(at, &a.Targets[i])
	}
}

var kindForm = regexp.MustCompile(`^[a-z0-9_.*]+$`)

func (r *reader) checkTarget(at string, t *edge.AlertTarget) {
	r.span(at, ".timeout", t.Timeout, 100*time.Millisecond, 5*time.Minute)
	for i, k := range t.Events {
		if !kindForm.MatchString(k) {
			r.complain(fmt.Sprintf("%s.events[%d]", at, i), quote(k)+" is not a kind of alert", "write it such as edge.move, edge.* or mode")
		}
	}
	switch t.Type {
	case edge.AlertTypeUnknown:
		r.complain(at+".type", "is missing", "write webhook, command or service")
		return
	case edge.AlertCommand:
		if len(t.Command) == 0 {
			r.complain(at+".command", "is missing", "write the command, such as [/usr/local/bin/tell]; it reads the alert as JSON")
		}
		r.argv(at+".command", t.Command)
		for _, f := range []struct{ key, value string }{{"url", t.URL}, {"url_file", t.URLFile}, {"headers_file", t.HeadersFile}} {
			if f.value != "" {
				r.complain(at+"."+f.key, fmt.Sprintf("a target of type %s has no %s", t.Type, f.key), "remove it, or change the type")
			}
		}
		return
	case edge.AlertWebhook, edge.AlertService:
	}
	if len(t.Command) > 0 {
		r.complain(at+".command", fmt.Sprintf("a target of type %s has no command", t.Type), "remove it, or change the type")
	}
	if t.Type == edge.AlertService && t.HeadersFile != "" {
		r.complain(at+".headers_file", fmt.Sprintf("a target of type %s has no headers_file", t.Type), "remove it, or change the type")
	}
	r.secretFile(at+".headers_file", t.HeadersFile, "write the path of a file that holds the headers, not the headers")
	r.checkURL(at, t)
}

// checkURL judges where alerts are sent. The address is a secret: it is never repeated.
func (r *reader) checkURL(at string, t *edge.AlertTarget) {
	r.secretFile(at+".url_file", t.URLFile, "write the path of a file whose first line is the address, not the address")
	switch {
	case t.URL == "" && t.URLFile == "":
		r.complain(at+".url", "is missing", "write the address, or url_file with the path of a file that holds it")
		return
	case t.URL != "" && t.URLFile != "":
		r.complain(at+".url_file", "a target has a url or a url_file, not both", "remove one of them")
		return
	case t.URL == "":
		return
	}
	u, err := url.Parse(t.URL)
	web := err == nil && (u.Scheme == "http" || u.Scheme == "https")
	switch {
	case t.Type == edge.AlertWebhook && (!web || u.Host == ""):
		r.complain(at+".url", "is not an address that can be posted to", "write it such as https://hooks.example/…; other schemes are for type: service")
	case t.Type == edge.AlertWebhook && u.Scheme == "http" && t.HeadersFile != "":
		r.warn(at+".headers_file", "the headers travel unencrypted", "write the url with https, if the site has it")
	case t.Type == edge.AlertService && (err != nil || u.Scheme == ""):
		r.complain(at+".url", "is not the address of a notification service", "write it such as ntfy://ntfy.sh/topic or discord://token@id")
	case t.Type == edge.AlertService && web:
		r.complain(at+".url", "is a web address", "write type: webhook")
	}
}
