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

// SourceError says why a source yielded nothing.
type SourceError struct {
	Source string // its name
	Err    error
}

func (e *SourceError) Error() string { return "source " + e.Source + ": " + e.Err.Error() }

// Unwrap is the reason.
func (e *SourceError) Unwrap() error { return e.Err }

// cutOff says whether there are remote sources and every one of them failed.
func cutOff(sources []Source, failed []error) bool {
	bad := map[string]bool{}
	for _, err := range failed {
		var s *SourceError
		if errors.As(err, &s) {
			bad[s.Source] = true
		}
	}
	return slices.ContainsFunc(sources, Source.Remote) &&
		!slices.ContainsFunc(sources, func(s Source) bool { return s.Remote() && !bad[s.Name] })
}
