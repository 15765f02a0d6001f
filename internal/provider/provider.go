// Package provider fetches tunnel profiles from the sources of the configuration: a
// folder, an archive, a command, a site or a provider's relay list. What it hands on lies in a folder of the caller's,
// was parsed, and is unique. It never writes anywhere else, whatever a source says.
package provider

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

// Bounds of a source that sets none.
const (
	DefaultTimeout  = time.Minute
	DefaultMaxBytes = 64 << 20 // unpacked, bytes
	DefaultMaxFiles = 100_000
)

// Depths of folders below the top that are looked into.
const (
	dirDepth     = 3
	archiveDepth = 8
)

// Listing is what the sources yielded.
type Listing struct {
	Entries []Entry   // in the order of the sources; unique by endpoint and by key pair
	Skipped []Skipped // files that were not taken
	Failed  []error   // an *egress.SourceError for each source that yielded nothing
}

// Entry is one usable profile.
type Entry struct {
	Source  string          // name of its source
	File    string          // base name: printable, unique in the listing, ends in .conf
	Path    string          // absolute path of the copy, mode 0600; its base is File
	Profile profile.Profile // has one peer with a literal endpoint; may be obfuscated
}

// Skipped is one file that was not taken.
type Skipped struct {
	Source string
	File   string // path inside the source, printable
	Reason string // never the value of a key
}

// Count is the number of usable profiles.
func (l Listing) Count() int { return len(l.Entries) }

// Options are the ways to the world that a fetch is given.
type Options struct {
	// DialContext opens the connections of downloads; nil = the system's own. It is
	// handed names as they stand in the URL, and resolves them: nothing else does.
	// Commands then have a proxy that uses it, and no other network.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Fetch reads the sources in order and copies their profiles into workdir, which it
// makes if need be. Of profiles with one endpoint, or with one pair of server and
// client key, the first wins. A source that fails leaves nothing behind, is named in
// Failed, and the others go on: the error is not nil only when workdir cannot be used,
// ctx ended, or no source yielded anything.
func Fetch(ctx context.Context, sources []egress.Source, workdir string, opts Options) (Listing, error) {
	sh, err := openShelf(workdir)
	if err != nil {
		return Listing{}, err
	}
	defer sh.root.Close()
	for _, src := range sources {
		if ctx.Err() != nil {
			break
		}
		b := sh.begin(src)
		if err := b.fetch(ctx, src, opts); err != nil {
			sh.list.Failed = append(sh.list.Failed, &egress.SourceError{Source: printable(src.Name), Err: err})
		}
	}
	switch {
	case ctx.Err() != nil:
		return sh.list, fmt.Errorf("fetch sources: %w", context.Cause(ctx))
	case len(sources) == 0:
		return sh.list, errors.New("no sources to fetch from")
	case len(sh.list.Entries) == 0:
		return sh.list, fmt.Errorf("no source yielded a profile: %w", errors.Join(sh.list.Failed...))
	}
	return sh.list, nil
}

// fetch reads one source. After an error nothing of the source is left on the shelf.
func (b *batch) fetch(ctx context.Context, src egress.Source, opts Options) error {
	limited, cancel := context.WithTimeoutCause(ctx, b.timeout, fmt.Errorf("not done within %s", b.timeout))
	defer cancel()
	var err error
	switch src.Type {
	case egress.SourceDir:
		err = b.dir(limited, src.Path)
	case egress.SourceArchive:
		err = b.archive(limited, src, opts)
	case egress.SourceExec:
		err = b.exec(limited, src.Command, opts)
	case egress.SourceHTTP:
		err = b.http(limited, src, opts)
	case egress.SourceMullvad:
		err = b.mullvad(limited, src, opts)
	case egress.SourceUnknown:
		err = errors.New("no type")
	default:
		err = fmt.Errorf("unknown type %q", src.Type)
	}
	if err != nil && limited.Err() != nil {
		// The deadline explains whatever it broke.
		err = context.Cause(limited)
	}
	if err != nil {
		b.undo()
		return b.masked(err)
	}
	if b.usable == 0 {
		return b.nothing()
	}
	return nil
}

// masked is an error without the secrets of the source, should one be in it.
func (b *batch) masked(err error) error {
	if text := err.Error(); b.mask(text) != text {
		return errors.New(b.mask(text))
	}
	return err
}

// nothing says why a source that could be read is of no use.
func (b *batch) nothing() error {
	skipped := b.shelf.list.Skipped[b.firstSkip:]
	if len(skipped) == 0 {
		return errors.New("no .conf file in it")
	}
	return fmt.Errorf("none of its files is usable: %d skipped, the first is %s: %s", len(skipped), skipped[0].File, skipped[0].Reason)
}
