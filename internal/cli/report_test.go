package cli

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/config"
)

func TestEachLineOfAnErrorIsSaidToBeOne(t *testing.T) {
	fault := &configError{Complaints: []config.Complaint{{File: "f", Line: 2, Column: 1, Msg: "unknown key", Hint: "look"}}}
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"one", errors.New("a"), "shunt: error: a\n"},
		{"two that were joined", errors.Join(errors.New("a"), errors.New("b")), "shunt: error: a\nshunt: error: b\n"},
		{"the same one twice", errors.Join(errors.New("a"), errors.Join(errors.New("a"))), "shunt: error: a\n"},
		{"two inside a third", fmt.Errorf("c: %w", errors.Join(errors.New("a"), errors.New("b"))), "shunt: error: c: a\nshunt: error: b\n"},
		{"two that are wrapped together", fmt.Errorf("c: %w: %w", errors.New("a"), errors.New("b")), "shunt: error: c: a: b\n"},
		{"a fault of the file beside another", errors.Join(errors.New("a"), fault), "shunt: error: a\nshunt: error: f:2:1: unknown key\nshunt: hint: look\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, _, stderr := testApp()
			a.report(&exitError{Code: exitFailed, Err: tt.err})
			if diff := cmp.Diff(tt.want, stderr.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
