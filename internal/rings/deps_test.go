package rings_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/shunt-net/shunt/internal/rings"
)

// unwanted returns the packages that must not be linked into the product, however far
// down something imports them: what only tests need, and what costs size or start-up time.
func unwanted(deps []string) []string {
	var bad []string
	for _, d := range deps {
		for _, prefix := range []string{
			"testing", "expvar", "net/http/pprof", "net/http/httptest", "github.com/google/go-cmp", "pgregory.net/rapid",
			"github.com/rogpeppe/go-internal", "gvisor.dev/gvisor",
		} {
			if d == prefix || strings.HasPrefix(d, prefix+"/") {
				bad = append(bad, d)
			}
		}
	}
	return bad
}

func TestTheProductLinksNothingUnwanted(t *testing.T) {
	t.Parallel()
	imports, err := rings.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"list", "-e", "-deps"}
	for _, i := range imports {
		if pkg := "./" + i.From; i.From != "internal/rings" && !slices.Contains(args, pkg) {
			args = append(args, pkg)
		}
	}
	list := exec.CommandContext(t.Context(), "go", args...)
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "github.com/gofrs/flock") {
		t.Fatalf("go list named %d packages, but not one that state certainly needs", len(deps))
	}
	for _, bad := range unwanted(deps) {
		t.Errorf("%s would be part of the product", bad)
	}
}

func TestUnwantedPackagesAreFound(t *testing.T) {
	t.Parallel()
	got := unwanted([]string{"net/http", "testing", "testing/fstest", "gvisor.dev/gvisor/pkg/tcpip", "testingx"})
	if want := []string{"testing", "testing/fstest", "gvisor.dev/gvisor/pkg/tcpip"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
