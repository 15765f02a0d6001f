package provider

import (
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName is the length of a copy's name without number and ending, in bytes: the
// file system's 255 less some room.
const maxName = 200

// maxText bounds a name or a far text in a reason, in bytes.
const maxText = 300

// isConf reports whether a name matches *.conf as a shell reads it: hidden files do not.
func isConf(name string) bool {
	base := path.Base(name)
	return len(base) > 5 && base[0] != '.' && strings.EqualFold(path.Ext(base), ".conf")
}

// printable makes a text from outside fit for one field of a report: valid UTF-8, no
// control, no line or direction marks, not too long.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, s)
	return shorten(s, maxText)
}

func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// fileStem is the base name for a copy, without its ending: printable and no path.
func fileStem(file string) string {
	base := path.Base(strings.ReplaceAll(file, `\`, "/"))
	base = strings.TrimSuffix(base, path.Ext(base))
	base = strings.TrimSpace(strings.ReplaceAll(printable(base), "/", "_"))
	base = strings.TrimSpace(shorten(base, maxName))
	if base == "" || base[0] == '.' {
		base = "_" + base
	}
	return base
}

// memberPath brings the name of an archive's member to slashes and tells why it may
// not be used; "" = it may.
func memberPath(name string) (clean, reason string) {
	clean = strings.ReplaceAll(name, `\`, "/")
	switch {
	case strings.IndexByte(clean, 0) >= 0:
		return clean, "a NUL byte in its name"
	case strings.HasPrefix(clean, "/"), len(clean) > 1 && clean[1] == ':':
		return clean, "an absolute path"
	}
	for part := range strings.SplitSeq(clean, "/") {
		if part == ".." {
			return clean, "a path that leaves the folder"
		}
	}
	clean = path.Clean(clean)
	if strings.Count(clean, "/") > archiveDepth {
		return clean, tooDeep(archiveDepth)
	}
	return clean, ""
}
