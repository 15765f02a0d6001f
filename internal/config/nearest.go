package config

import (
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Nearest returns the known word that a mistyped one most likely means, or "" when
// none is near enough.
func Nearest(word string, known []string) string {
	if len(word) > 64 { // nobody mistypes that; the distance would be slow
		return ""
	}
	word = strings.ToLower(word)
	best, at := "", max(1, min(3, len(word)/3))+1
	for _, k := range known {
		d := distance(word, strings.ToLower(k))
		if d < at {
			best, at = k, d
		}
	}
	if best != "" || len(word) < 3 {
		return best
	}
	for _, part := range []func(s, part string) bool{strings.HasPrefix, strings.HasSuffix} {
		for _, k := range known { // a beginning or an ending is as good: ratio for min_ratio
			if part(k, word) {
				return k
			}
		}
	}
	return ""
}

// distance is Levenshtein's, but two letters swapped are one fault.
func distance(a, b string) int {
	d := levenshtein.ComputeDistance(a, b)
	if d == 2 && len(a) == len(b) {
		x, y := []byte(a), []byte(b)
		slices.Sort(x)
		slices.Sort(y)
		if slices.Equal(x, y) {
			return 1
		}
	}
	return d
}
