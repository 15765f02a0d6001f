package tunnel

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/profile"
	"github.com/shunt-net/shunt/internal/tunnel/wgtest"
)

// recorded are the settings of one generation, as the reference implementation was run with.
func recorded(t testing.TB, version string) []profile.KeyValue {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "amnezia", "testdata", version+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Conf map[string]string }
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	var out []profile.KeyValue
	for k, v := range r.Conf {
		out = append(out, profile.KeyValue{Key: k, Value: v})
	}
	slices.SortFunc(out, func(a, b profile.KeyValue) int { return strings.Compare(a.Key, b.Key) })
	return out
}

func versions() []string { return []string{"1.0", "1.5", "2.0", "3.0", "3.1"} }

func TestEachGenerationOfAmneziaWGPasses(t *testing.T) {
	// One plain endpoint among them: the socket is everyone's.
	speaks := func(i int) []profile.KeyValue {
		if i == len(versions()) {
			return nil
		}
		return recorded(t, versions()[i])
	}
	for _, parallel := range []int{64, 2} { // straight, and through the sieve
		_, targets := serve(t, len(versions())+1, wgtest.Options{Speaks: speaks})
		c := configTLS()
		c.Parallel = parallel
		results, err := runTest(t, t.Context(), c, targets, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, target := range targets {
			r := results[target.Path]
			got := []any{r.Reason, r.Got, r.FullSize, r.Handshake > 0}
			if diff := cmp.Diff([]any{"", c.Pings, true, true}, got); diff != "" {
				t.Errorf("parallel %d: endpoint %d of %v: (-want +got)\n%s", parallel, i, versions(), diff)
			}
		}
	}
}

func TestAServerOfAnotherKindDoesNotPass(t *testing.T) {
	for _, parallel := range []int{64, 1} {
		for _, tt := range []struct{ name, speaks, says, reason string }{
			{"parameters of another generation", "2.0", "1.0", ReasonNoHandshake},
			{"a plain profile of an obfuscated server", "3.1", "", ReasonNoHandshake},
			{"a plain server", "", "3.1", ReasonPlain},
			{"a plain server, a profile of 1.0", "", "1.0", ReasonPlain},
		} {
			of := func(v string) func(int) []profile.KeyValue {
				return func(int) []profile.KeyValue {
					if v == "" {
						return nil
					}
					return recorded(t, v)
				}
			}
			_, targets := serve(t, 2, wgtest.Options{Speaks: of(tt.speaks), Says: of(tt.says)})
			c := config()
			c.Parallel = parallel
			results, err := runTest(t, t.Context(), c, targets, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, target := range targets {
				if got := results[target.Path].Reason; got != tt.reason {
					t.Errorf("%s, parallel %d: %q, want %q", tt.name, parallel, got, tt.reason)
				}
			}
		}
	}
}
