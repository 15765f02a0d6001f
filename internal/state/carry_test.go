package state

import (
	"maps"
	"testing"
)

func TestCarry(t *testing.T) {
	was := map[string]int{"same": 1, "changed": 1, "gone": 1, "gone from both": 1}
	next := map[string]int{"same": 1, "changed": 2, "new": 3}
	// Others changed one, removed one and added one.
	to := map[string]int{"same": 9, "changed": 1, "gone": 1, "theirs": 7}
	Carry(to, was, next)
	if want := map[string]int{"same": 9, "changed": 2, "new": 3, "theirs": 7}; !maps.Equal(to, want) {
		t.Errorf("got %v, want %v", to, want)
	}
}
