package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/shunt-net/shunt/internal/egress"
)

// Reach asks the remote sources, in order, until one answers with the beginning of what
// it should be, and keeps nothing of it. The error names each source that did not, or says
// that none is remote. A portal that answers for everybody with a page of its own is not
// a source.
//
// Where no source is remote, commands are run by the way of the options instead, until one
// has filled its folder with the first usable profile and something has come by that way.
func Reach(ctx context.Context, sources []egress.Source, opts Options) error {
	ask, wanted := reach, egress.Source.Remote
	if opts.DialContext != nil && !slices.ContainsFunc(sources, wanted) {
		ask, wanted = reachByCommand, func(s egress.Source) bool { return s.Type == egress.SourceExec }
	}
	var errs []error
	for _, src := range sources {
		if !wanted(src) {
			continue
		}
		err := ask(ctx, src, opts)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("source %s: %w", printable(src.Name), err))
		if ctx.Err() != nil {
			break
		}
	}
	if len(errs) == 0 {
		return errors.New("no source is read from the network")
	}
	return errors.Join(errs...)
}

func reach(ctx context.Context, src egress.Source, opts Options) error {
	b := (&shelf{}).begin(src)
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if src.URL == "" {
		src.URL = MullvadList
	}
	r, err := b.remote(src, opts)
	if err != nil {
		return b.masked(err)
	}
	defer r.done()
	resp, err := r.get(ctx, r.home)
	if err != nil {
		return b.masked(err)
	}
	defer resp.Body.Close()
	head, err := io.ReadAll(io.LimitReader(resp.Body, sniffLen))
	if err != nil {
		return b.masked(fmt.Errorf("%s: the answer broke off: %s", site(r.home), r.quote(transportText(err))))
	}
	if !fits(src.Type, sniff(head)) {
		return b.masked(sniff(head).refuse("the answer", "a list", head, r.quote))
	}
	return nil
}

func reachByCommand(ctx context.Context, src egress.Source, opts Options) error {
	b := (&shelf{}).begin(src)
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if err := b.proof(ctx, src.Command, opts); err != nil {
		return b.masked(err)
	}
	return nil
}

// fits says whether an answer that begins like this can be of such a source.
func fits(t egress.SourceType, s shape) bool {
	switch s {
	case shapeZip, shapeTar, shapeGzip:
		return t != egress.SourceMullvad
	case shapeJSON:
		return t == egress.SourceMullvad
	case shapeProfile, shapeText:
		return t == egress.SourceHTTP
	case shapeOther, shapeEmpty, shapeHTML, shapeXML:
	}
	return false
}
