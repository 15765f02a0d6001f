package provider

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

// pair is what a responder tells sessions apart by.
type pair struct{ server, client profile.Key }

// shelf is the folder of the copies and the record of what is on it. All writing goes
// through root, which cannot leave the folder.
type shelf struct {
	root      *os.Root
	dir       string // absolute
	list      Listing
	endpoints map[string]int // -> index in list.Entries
	pairs     map[pair]int
	names     map[string]int              // file name -> last number handed out for it
	publics   map[profile.Key]profile.Key // private -> public; a provider gives one key for all
}

func openShelf(dir string) (*shelf, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("folder for profiles: %w", err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, fmt.Errorf("folder for profiles: %w", err)
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, fmt.Errorf("folder for profiles: %w", err)
	}
	return &shelf{
		root: root, dir: abs, endpoints: map[string]int{}, pairs: map[pair]int{},
		names: map[string]int{}, publics: map[profile.Key]profile.Key{},
	}, nil
}

// batch is what one source puts on the shelf.
type batch struct {
	shelf      *shelf
	source     string
	timeout    time.Duration
	maxBytes   int64
	maxFiles   int
	bytes      int64 // unpacked so far
	files      int   // .conf files seen
	members    int   // things seen, whatever they are
	usable     int   // profiles that parse and fit, duplicates included
	firstEntry int
	firstSkip  int
	secrets    []string            // must appear in nothing that the source yields
	mask       func(string) string // hides them
}

// leastSecret is the length of the shortest secret that is hidden in names, in bytes.
const leastSecret = 4

// keep remembers secrets of the source: a far end that repeats them finds them in no name
// and in no reason.
func (b *batch) keep(secrets ...string) {
	b.secrets = append(b.secrets, secrets...)
	b.mask = hider(leastSecret, b.secrets)
}

func (s *shelf) begin(src egress.Source) *batch {
	b := &batch{
		shelf: s, source: src.Name, timeout: src.Timeout, maxBytes: src.MaxBytes, maxFiles: src.MaxFiles,
		firstEntry: len(s.list.Entries), firstSkip: len(s.list.Skipped),
	}
	b.keep()
	if b.timeout <= 0 {
		b.timeout = DefaultTimeout
	}
	if b.maxBytes <= 0 {
		b.maxBytes = DefaultMaxBytes
	}
	if b.maxFiles <= 0 {
		b.maxFiles = DefaultMaxFiles
	}
	return b
}

// maxMembers leaves room for folders and read-me files besides the profiles.
func (b *batch) maxMembers() int { return 4*b.maxFiles + 1024 }

// see counts one thing of the source.
func (b *batch) see() error {
	if b.members++; b.members > b.maxMembers() {
		return b.tooMany()
	}
	return nil
}

// seeConf counts one .conf file of the source.
func (b *batch) seeConf() error {
	if b.files++; b.files > b.maxFiles {
		return b.tooMany()
	}
	return nil
}

func (b *batch) tooMany() error {
	return fmt.Errorf("holds more files than max_files: %d allows", b.maxFiles)
}

// weigh counts unpacked bytes.
func (b *batch) weigh(n int64) error {
	if n < 0 || n > b.maxBytes-b.bytes {
		return b.tooBig()
	}
	b.bytes += n
	return nil
}

func (b *batch) tooBig() error {
	return fmt.Errorf("larger than max_bytes: %d allows", b.maxBytes)
}

func (b *batch) skip(file, reason string) {
	b.shelf.list.Skipped = append(b.shelf.list.Skipped, Skipped{Source: b.source, File: printable(b.mask(file)), Reason: b.mask(reason)})
}

// add parses one file and puts it on the shelf, or skips it with a reason. The error
// is one of the shelf, not of the file.
func (b *batch) add(file string, data []byte) error {
	if err := b.weigh(int64(len(data))); err != nil {
		return err
	}
	p, err := profile.Parse(printable(path.Base(file)), bytes.NewReader(data))
	if err == nil {
		err = p.Check()
	}
	if err != nil {
		b.skip(file, reasonOf(err))
		return nil
	}
	b.usable++
	s := b.shelf
	key := pair{p.Peers[0].PublicKey, s.public(p.PrivateKey)}
	if i, ok := s.endpoints[p.Endpoint()]; ok {
		b.skip(file, fmt.Sprintf("the same endpoint %s as %s", p.Endpoint(), s.entryName(i)))
		return nil
	}
	if i, ok := s.pairs[key]; ok {
		b.skip(file, fmt.Sprintf("the same server key and client key as %s", s.entryName(i)))
		return nil
	}
	name, err := s.write(b.mask(file), data)
	if err != nil {
		return fmt.Errorf("copy of %s: %w", printable(file), err)
	}
	s.endpoints[p.Endpoint()], s.pairs[key] = len(s.list.Entries), len(s.list.Entries)
	s.list.Entries = append(s.list.Entries, Entry{Source: b.source, File: name, Path: filepath.Join(s.dir, name), Profile: p})
	return nil
}

// reasonOf drops the file's name, which the record has beside it.
func reasonOf(err error) string {
	var se *profile.SyntaxError
	switch {
	case errors.As(err, &se) && se.Line > 0:
		return fmt.Sprintf("line %d: %s", se.Line, se.Msg)
	case se != nil:
		return se.Msg
	}
	return err.Error()
}

func (s *shelf) entryName(i int) string {
	return s.list.Entries[i].File + " of source " + printable(s.list.Entries[i].Source)
}

func (s *shelf) public(private profile.Key) profile.Key {
	pub, ok := s.publics[private]
	if !ok {
		pub = private.Public()
		s.publics[private] = pub
	}
	return pub
}

// write puts data into a new file that is named after file.
func (s *shelf) write(file string, data []byte) (string, error) {
	stem := fileStem(file)
	for n := s.names[stem] + 1; ; n++ {
		s.names[stem] = n
		name := stem + ".conf"
		if n > 1 {
			name = fmt.Sprintf("%s~%d.conf", stem, n)
		}
		f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		// The umask may have taken even the owner's bits.
		err = errors.Join(f.Chmod(0o600), writeAll(f, data), f.Close())
		if err != nil {
			_ = s.root.Remove(name)
			return "", err
		}
		return name, nil
	}
}

func writeAll(f *os.File, data []byte) error {
	_, err := f.Write(data)
	return err
}

// undo takes what the source put on the shelf off again.
func (b *batch) undo() {
	s := b.shelf
	for _, e := range s.list.Entries[b.firstEntry:] {
		delete(s.endpoints, e.Profile.Endpoint())
		delete(s.pairs, pair{e.Profile.Peers[0].PublicKey, s.public(e.Profile.PrivateKey)})
		_ = s.root.Remove(e.File)
	}
	clear(s.list.Entries[b.firstEntry:])
	clear(s.list.Skipped[b.firstSkip:])
	s.list.Entries, s.list.Skipped = s.list.Entries[:b.firstEntry], s.list.Skipped[:b.firstSkip]
	b.usable = 0
}
