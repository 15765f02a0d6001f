package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
)

const maxRedirects = 5

// remote is the far end of a source: who asks it and what must not be repeated of it.
type remote struct {
	client *http.Client
	done   func()
	home   *url.URL            // as in the configuration
	quote  func(string) string // makes a text of the far end fit for an error
}

// remote opens the way to the source's URL. From here on the values of its headers
// appear in nothing that the source yields.
func (b *batch) remote(src egress.Source, opts Options) (*remote, error) {
	u, err := url.Parse(src.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		// The parser's own error repeats the URL, secrets and all.
		return nil, errors.New("the url is not http://host/… or https://host/…")
	}
	headers, err := readHeaders(src.HeadersFile)
	if err != nil {
		return nil, err
	}
	secrets := headerSecrets(headers)
	b.keep(secrets...)
	client, done := newClient(opts)
	client.Transport = &courier{next: client.Transport, home: u, headers: headers}
	return &remote{client: client, done: done, home: u, quote: quoter(u, secrets...)}, nil
}

// site is how an error names an address: without anything that may be secret.
func site(u *url.URL) string { return u.Scheme + "://" + u.Host }

// sameSite reports whether two addresses are of one site.
func sameSite(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && portOf(a) == portOf(b)
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// courier adds the configured headers to requests for the configured site, and to no
// other that a redirect leads to.
type courier struct {
	next    http.RoundTripper
	home    *url.URL
	headers http.Header
}

// RoundTrip sends one request.
func (c *courier) RoundTrip(req *http.Request) (*http.Response, error) {
	if len(c.headers) > 0 && sameSite(req.URL, c.home) {
		req = req.Clone(req.Context())
		maps.Copy(req.Header, c.headers)
	}
	return c.next.RoundTrip(req)
}

// get asks for an address; an answer other than 200 is an error. The caller closes the
// body.
func (r *remote) get(ctx context.Context, u *url.URL) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: the request cannot be made", site(u))
	}
	req.Header.Set("User-Agent", "shunt")
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", site(u), r.quote(transportText(err)))
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, statusError(site(u), resp, r.quote)
	}
	return resp, nil
}

// download spools the answer of the source's URL into a file without a name. base is the
// address that answered.
func (b *batch) download(ctx context.Context, r *remote) (f *os.File, size int64, base *url.URL, err error) {
	resp, err := r.get(ctx, r.home)
	if err != nil {
		return nil, 0, nil, err
	}
	defer resp.Body.Close()
	if f, err = b.spool(); err != nil {
		return nil, 0, nil, err
	}
	if size, err = b.receive(f, resp, r.quote); err != nil {
		f.Close()
		return nil, 0, nil, fmt.Errorf("%s: %w", site(r.home), err)
	}
	return f, size, resp.Request.URL, nil
}

// newClient makes a client of its own: no environment proxy, no shared connections.
func newClient(opts Options) (client *http.Client, done func()) {
	t := &http.Transport{
		DialContext:            opts.DialContext,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // the body is an archive; its length must be the one announced
		TLSHandshakeTimeout:    20 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
	c := &http.Client{Transport: t, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return fmt.Errorf("more than %d redirects", maxRedirects)
		}
		if via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https" {
			return errors.New("a redirect from https to " + req.URL.Scheme)
		}
		// It would tell the next site the query of the last one.
		req.Header.Del("Referer")
		return nil
	}}
	return c, t.CloseIdleConnections
}

// spool makes a file in the shelf's folder that vanishes with its descriptor.
func (b *batch) spool() (*os.File, error) {
	const name = ".download"
	_ = b.shelf.root.Remove(name)
	f, err := b.shelf.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("file for the download: %w", err)
	}
	if err := b.shelf.root.Remove(name); err != nil {
		f.Close()
		return nil, fmt.Errorf("file for the download: %w", err)
	}
	return f, nil
}

// receive copies the body into f and returns its length.
func (b *batch) receive(f *os.File, resp *http.Response, quote func(string) string) (int64, error) {
	if resp.ContentLength > b.maxPacked() {
		return 0, b.tooBig()
	}
	n, err := io.Copy(f, io.LimitReader(resp.Body, b.maxPacked()+1))
	switch {
	case n > b.maxPacked():
		return 0, b.tooBig()
	case errors.Is(err, io.ErrUnexpectedEOF) && resp.ContentLength >= 0:
		return 0, fmt.Errorf("the answer ended after %d of %d bytes", n, resp.ContentLength)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return 0, fmt.Errorf("the answer ended early, after %d bytes", n)
	case err != nil:
		return 0, fmt.Errorf("the answer broke off after %d bytes: %s", n, quote(transportText(err)))
	}
	return n, nil
}

func statusError(site string, resp *http.Response, quote func(string) string) error {
	head, _ := io.ReadAll(io.LimitReader(resp.Body, sniffLen))
	text := fmt.Sprintf("%s answered %d %s", site, resp.StatusCode, http.StatusText(resp.StatusCode))
	if sniff(head) == shapeJSON {
		if msg := jsonMessage(head); msg != "" {
			text += ": " + quote(msg)
		}
	}
	return errors.New(text)
}

// transportText is an error's text without the URL that net/http puts before it.
func transportText(err error) string {
	var ue *url.Error
	for errors.As(err, &ue) {
		err = ue.Err
	}
	return err.Error()
}

// quoter returns a function that makes a text from outside fit for an error: printable,
// short, and without what the URL keeps secret, which is its user, its password and
// its query, nor any other secret. It also strips those of any other URL in the text.
func quoter(u *url.URL, secrets ...string) func(string) string {
	secrets = slices.Clone(secrets)
	if u.User != nil {
		pass, _ := u.User.Password()
		secrets = append(secrets, pass, u.User.Username())
	}
	secrets = append(secrets, u.RawQuery)
	for _, values := range u.Query() {
		secrets = append(secrets, values...)
	}
	hide := hider(3, secrets)
	user := regexp.MustCompile(`//[^/\s"]*@`)
	query := regexp.MustCompile(`\?[^\s"]+`)
	return func(s string) string {
		s = hide(s)
		s = user.ReplaceAllString(s, "//")
		return printable(query.ReplaceAllString(s, "?(hidden)"))
	}
}

// hider returns a function that hides secrets of at least that many bytes, as they are
// and in the forms that an error may quote them in.
func hider(least int, secrets []string) func(string) string {
	var forms []string
	for _, s := range secrets {
		quoted := strconv.Quote(s)
		for _, f := range []string{s, url.QueryEscape(s), url.PathEscape(s), quoted[1 : len(quoted)-1]} {
			if len(f) >= least {
				forms = append(forms, f)
			}
		}
	}
	if len(forms) == 0 {
		return func(s string) string { return s }
	}
	// At one place the first form that fits is taken: no short one may leave the rest of
	// a longer one behind.
	slices.SortFunc(forms, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	var pairs []string
	for _, f := range slices.Compact(forms) {
		pairs = append(pairs, f, "(hidden)")
	}
	return strings.NewReplacer(pairs...).Replace
}
