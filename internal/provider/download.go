package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"
)

const maxRedirects = 5

// download spools the answer of a URL into a file without a name, and unpacks that.
func (b *batch) download(ctx context.Context, raw string, opts Options) error {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		// The parser's own error repeats the URL, secrets and all.
		return errors.New("the url is not http://host/… or https://host/…")
	}
	site := u.Scheme + "://" + u.Host
	quote := quoter(u)
	client, done := newClient(opts)
	defer done()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, raw, nil)
	if err != nil {
		return fmt.Errorf("%s: the request cannot be made", site)
	}
	req.Header.Set("User-Agent", "shunt")
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %s", site, quote(transportText(err)))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return statusError(site, resp, quote)
	}
	f, err := b.spool()
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := b.receive(f, resp, quote)
	if err != nil {
		return fmt.Errorf("%s: %w", site, err)
	}
	return b.unpack(ctx, f, n, "the answer", quote)
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
// its query. It also strips those of any other URL in the text.
func quoter(u *url.URL) func(string) string {
	var secrets []string
	add := func(s string) {
		if len(s) >= 3 {
			secrets = append(secrets, s, "(hidden)")
		}
	}
	if u.User != nil {
		pass, _ := u.User.Password()
		add(pass)
		add(url.QueryEscape(pass))
		add(u.User.Username())
		add(url.QueryEscape(u.User.Username()))
	}
	add(u.RawQuery)
	for _, values := range u.Query() {
		for _, v := range values {
			add(v)
			add(url.QueryEscape(v))
		}
	}
	hide := strings.NewReplacer(secrets...)
	user := regexp.MustCompile(`//[^/\s"]*@`)
	query := regexp.MustCompile(`\?[^\s"]+`)
	return func(s string) string {
		s = hide.Replace(s)
		s = user.ReplaceAllString(s, "//")
		return printable(query.ReplaceAllString(s, "?(hidden)"))
	}
}
