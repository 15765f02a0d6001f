package provider

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

// http reads whatever a site answers with that holds profiles: an archive, one .conf,
// several one below the other, or a list of links to .conf files.
func (b *batch) http(ctx context.Context, src egress.Source, opts Options) error {
	r, err := b.remote(src, opts)
	if err != nil {
		return err
	}
	defer r.done()
	f, size, base, err := b.download(ctx, r)
	if err != nil {
		return err
	}
	defer f.Close()
	head, err := peek(f, size)
	if err != nil {
		return fmt.Errorf("the answer: %w", err)
	}
	s := sniff(head)
	switch s {
	case shapeZip, shapeTar, shapeGzip:
		return b.unpack(ctx, f, size, "the answer", r.quote)
	case shapeOther, shapeEmpty, shapeHTML, shapeXML, shapeJSON:
		return s.refuse("the answer", "profiles", head, r.quote)
	case shapeProfile, shapeText:
	}
	body, err := b.whole(f, size)
	if err != nil {
		return err
	}
	if list := links(body, base); len(list) > 0 {
		return b.linked(ctx, r, base, list)
	}
	if !bytes.Contains(bytes.ToLower(body), []byte("[interface]")) {
		return s.refuse("the answer", "profiles", head, r.quote)
	}
	return b.bundle(ctx, body)
}

// whole reads a source that is one text.
func (b *batch) whole(f io.ReaderAt, size int64) ([]byte, error) {
	if size > b.maxBytes {
		return nil, b.tooBig()
	}
	body := make([]byte, size)
	if n, err := f.ReadAt(body, 0); int64(n) < size {
		return nil, fmt.Errorf("only %d of %d bytes can be read: %w", n, size, cause(err))
	}
	return bytes.TrimPrefix(body, []byte("\ufeff")), nil
}

// bundle takes the profiles of a text, each of which begins with [Interface] and the
// comment above it.
func (b *batch) bundle(ctx context.Context, body []byte) error {
	rest := body
	for n := 1; len(rest) > 0; n++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := b.seeConf(); err != nil {
			return err
		}
		one, name := cutProfile(rest)
		rest = rest[len(one):]
		switch {
		case name != "":
		case n == 1:
			name = fileStem(b.source + ".conf")
		default:
			name = fmt.Sprintf("%s-%d", fileStem(b.source+".conf"), n)
		}
		name += ".conf"
		if len(one) > profile.MaxSize {
			b.skip(name, errLarge.Error())
			continue
		}
		if err := b.add(name, one); err != nil {
			return err
		}
	}
	return nil
}

// titleForm is a comment that is a profile's name and nothing else.
var titleForm = regexp.MustCompile(`^#+[ \t]*([A-Za-z0-9][A-Za-z0-9._-]{0,62})$`)

// cutProfile returns the beginning of a text up to the comment above its second
// [Interface], and the name that the comment above the first one gives it.
func cutProfile(text []byte) (one []byte, name string) {
	end, at, found := 0, 0, false // end: behind the last line that says something
	title := ""
	for line := range bytes.Lines(text) {
		said := strings.TrimSpace(string(line))
		at += len(line)
		switch {
		case said == "":
			continue
		case said[0] == '#':
			title = ""
			if m := titleForm.FindStringSubmatch(said); m != nil {
				title = m[1]
			}
			continue
		case strings.EqualFold(said, "[interface]") && found:
			return text[:end], name
		case strings.EqualFold(said, "[interface]"):
			found, name = true, strings.TrimSuffix(title, ".conf")
		}
		title, end = "", at
	}
	return text, name
}

// links reads a text in which each line is an address, or the path of a .conf file; nil
// when it is not one.
func links(body []byte, base *url.URL) []*url.URL {
	var out []*url.URL
	for line := range bytes.Lines(body) {
		said := strings.TrimSpace(string(line))
		if said == "" || said[0] == '#' {
			continue
		}
		u, err := url.Parse(said)
		if err != nil || strings.ContainsAny(said, " \t[") {
			return nil
		}
		if whole := u.Scheme == "http" || u.Scheme == "https"; whole && u.Host == "" || !whole && (u.Scheme != "" || !isConf(u.Path)) {
			return nil
		}
		out = append(out, base.ResolveReference(u))
	}
	return out
}

// linked fetches the profiles of a list of links, one after another. Only links to the
// list's own site are followed: a list is not to send requests anywhere it likes.
func (b *batch) linked(ctx context.Context, r *remote, base *url.URL, list []*url.URL) error {
	for i, u := range list {
		if err := b.seeConf(); err != nil {
			return err
		}
		name := path.Base(u.Path)
		if !isConf(name) {
			name = fmt.Sprintf("%s-%d.conf", fileStem(b.source+".conf"), i+1)
		}
		if !sameSite(u, base) {
			b.skip(name, "a link to another site, "+r.quote(site(u)))
			continue
		}
		if u.User == nil && sameSite(u, r.home) {
			u.User = r.home.User
		}
		data, err := r.profile(ctx, u)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			b.skip(name, err.Error())
			err = b.weigh(int64(len(data)))
		} else {
			err = b.add(name, data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// profile fetches one .conf. What was read is returned with an error too.
func (r *remote) profile(ctx context.Context, u *url.URL) ([]byte, error) {
	resp, err := r.get(ctx, u)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := readConf(resp.Body)
	if err != nil {
		return data, fmt.Errorf("%s: %s", site(u), r.quote(transportText(err)))
	}
	head := data[:min(sniffLen, len(data))]
	switch s := sniff(head); s {
	case shapeProfile:
	case shapeText: // the comment above may be long
		if !bytes.Contains(bytes.ToLower(data), []byte("[interface]")) {
			return data, s.refuse("the answer", "a profile", head, r.quote)
		}
	case shapeOther, shapeEmpty, shapeZip, shapeGzip, shapeTar, shapeHTML, shapeXML, shapeJSON:
		return data, s.refuse("the answer", "a profile", head, r.quote)
	}
	return data, nil
}
