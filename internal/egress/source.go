package egress

import (
	"errors"
	"slices"
)

// Remote says whether the source is read from the network by this program itself, so that
// a way to it can be chosen.
func (s Source) Remote() bool {
	switch s.Type {
	case SourceArchive, SourceHTTP:
		return s.URL != ""
	case SourceMullvad:
		return s.Path == ""
	case SourceDir, SourceExec, SourceUnknown:
	}
	return false
}

// local says whether the source is a file or folder of this machine. What a command does is
// its own: it is neither.
func (s Source) local() bool {
	switch s.Type {
	case SourceDir:
		return true
	case SourceArchive, SourceMullvad:
		return !s.Remote()
	case SourceHTTP, SourceExec, SourceUnknown:
	}
	return false
}

// SourceError says why a source yielded nothing.
type SourceError struct {
	Source string // its name
	Err    error
}

func (e *SourceError) Error() string { return "source " + e.Source + ": " + e.Err.Error() }

// Unwrap is the reason.
func (e *SourceError) Unwrap() error { return e.Err }

// Leads says whether a way can be chosen for the source: this program fetches it itself, or
// a command does that can be led.
func (s Source) Leads() bool { return s.Remote() || s.Type == SourceExec }

// cutOff says whether there are remote sources and every one of them failed. Where none is,
// commands stand for them: what they fetch may be cut off too.
func cutOff(sources []Source, failed []error) bool {
	bad := map[string]bool{}
	for _, err := range failed {
		var s *SourceError
		if errors.As(err, &s) {
			bad[s.Source] = true
		}
	}
	far := Source.Remote
	if !slices.ContainsFunc(sources, far) {
		far = Source.Leads
	}
	return slices.ContainsFunc(sources, far) &&
		!slices.ContainsFunc(sources, func(s Source) bool { return far(s) && !bad[s.Name] })
}
