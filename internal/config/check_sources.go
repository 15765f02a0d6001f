package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shunt-net/shunt/internal/egress"
)

func (r *reader) checkSources(sources []egress.Source) {
	names := map[string]int{}
	for i, s := range sources {
		at := fmt.Sprintf("egress.sources[%d]", i)
		r.name(at, s.Name, names, i)
		r.positive(at, ".timeout", s.Timeout)
		if s.MaxBytes < 1 {
			r.complain(at+".max_bytes", fmt.Sprintf("%d is out of range", s.MaxBytes), "write at least 1")
		}
		r.between(at, ".max_files", s.MaxFiles, 1, 1<<24)
		r.checkSource(at, s)
	}
}

func (r *reader) checkSource(at string, s egress.Source) {
	var allowed []string
	switch s.Type {
	case egress.SourceDir:
		allowed = []string{"path"}
		if s.Path == "" {
			r.complain(at+".path", "is missing", "write the folder of the .conf files")
		}
	case egress.SourceArchive:
		allowed = []string{"path", "url", "headers_file"}
		if s.Path == "" && s.URL == "" {
			r.complain(at+".url", "is missing", "write the archive's url, or its path")
		}
	case egress.SourceExec:
		allowed = []string{"command"}
		if len(s.Command) == 0 {
			r.complain(at+".command", "is missing", "write the command, such as [/usr/local/bin/fetch]")
		}
		r.argv(at+".command", s.Command)
	case egress.SourceHTTP:
		allowed = []string{"url", "headers_file"}
		if s.URL == "" {
			r.complain(at+".url", "is missing", "write the address of the profiles")
		}
	case egress.SourceMullvad:
		allowed = []string{"path", "url", "headers_file", "key_file", "addresses", "dns", "port", "countries", "cities", "ownership"}
		r.checkRelays(at, s)
	case egress.SourceUnknown:
		r.complain(at+".type", "is missing", "write dir, archive, exec, http or mullvad")
		return
	}
	r.onlyKeys(at, s, allowed)
	r.checkFar(at, s)
}

// onlyKeys complains about keys that a source of this type does not have.
func (r *reader) onlyKeys(at string, s egress.Source, allowed []string) {
	for _, f := range []struct {
		key string
		set bool
	}{
		{"path", s.Path != ""},
		{"url", s.URL != ""},
		{"command", len(s.Command) > 0},
		{"headers_file", s.HeadersFile != ""},
		{"key_file", s.KeyFile != ""},
		{"addresses", len(s.Addresses) > 0},
		{"dns", len(s.DNS) > 0},
		{"port", s.Port != 0},
		{"countries", len(s.Countries) > 0},
		{"cities", len(s.Cities) > 0},
		{"ownership", s.Ownership != ""},
	} {
		if f.set && !slices.Contains(allowed, f.key) {
			r.complain(at+"."+f.key, fmt.Sprintf("a source of type %s has no %s", s.Type, f.key), "remove it, or change the type")
		}
	}
}

// checkFar judges where a source is, and what goes there with the request.
func (r *reader) checkFar(at string, s egress.Source) {
	if s.Path != "" && s.URL != "" {
		r.complain(at+".url", fmt.Sprintf("a source of type %s has a url or a path, not both", s.Type), "remove one of them")
	}
	if s.Path != "" && !filepath.IsAbs(s.Path) {
		r.complain(at+".path", quote(s.Path)+" is not an absolute path", "")
	}
	u, err := url.Parse(s.URL)
	switch {
	case s.URL == "":
		if s.HeadersFile != "" {
			r.complain(at+".headers_file", "there is no url that the headers could go to", "write the url, or remove headers_file")
		}
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		// The address may hold a secret: it is not repeated.
		r.complain(at+".url", "is not an address that can be fetched", "write it such as https://provider.example/profiles.zip")
	case u.Scheme == "http" && s.HeadersFile != "":
		r.warn(at+".headers_file", "the headers travel unencrypted", "write the url with https, if the site has it")
	}
	r.secretFile(at+".headers_file", s.HeadersFile, "write the path of a file that holds the headers, not the headers")
}

// secretFile judges the path of a file with secrets. What stands there may be the secret
// itself: it is not repeated.
func (r *reader) secretFile(at, path, hint string) {
	if path != "" && !filepath.IsAbs(path) {
		r.complain(at, "is not an absolute path", hint)
	}
}

func (r *reader) checkRelays(at string, s egress.Source) {
	if s.KeyFile == "" {
		r.complain(at+".key_file", "is missing", "write the path of the file that holds your private key")
	}
	r.secretFile(at+".key_file", s.KeyFile, "write the path of the file that holds the key, not the key")
	if len(s.Addresses) == 0 {
		r.complain(at+".addresses", "is missing", "write the addresses that your account has for the key, such as [10.64.0.2/32]")
	}
	for i, a := range s.Addresses {
		key := fmt.Sprintf("%s.addresses[%d]", at, i)
		switch {
		case !a.IsValid() || useless(a.Addr()):
			r.complain(key, fmt.Sprintf("%s is no address of a tunnel", a), "write it such as 10.64.0.2/32")
		case slices.ContainsFunc(s.Addresses[:i], func(b netip.Prefix) bool { return b.Addr() == a.Addr() }):
			r.complain(key, fmt.Sprintf("%s is named twice", a.Addr()), "remove one")
		}
	}
	r.addresses(at+".dns", s.DNS, false)
	r.between(at, ".port", s.Port, 0, 65535)
	for _, f := range []struct {
		key  string
		list []string
	}{{"countries", s.Countries}, {"cities", s.Cities}} {
		for i, w := range f.list {
			if strings.TrimSpace(w) != w || w == "" {
				r.complain(fmt.Sprintf("%s.%s[%d]", at, f.key, i), quote(w)+" is not the code or the name of a place", "write it such as se or Sweden, got or Gothenburg")
			}
		}
	}
}
