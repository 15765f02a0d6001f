package rings_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/shunt-net/shunt/internal/rings"
)

// unwanted returns the packages that must not be linked into the product, however far
// down something imports them: what only tests need, and what costs size or start-up
// time. A package is listed with what it imports: gVisor comes in by one door only.
func unwanted(deps [][]string) []string {
	const gvisor, door = "gvisor.dev/gvisor", rings.Module + "/internal/tunnel"
	var bad []string
	for _, d := range deps {
		for _, prefix := range []string{
			"testing", "expvar", "net/http/pprof", "net/http/httptest", "github.com/google/go-cmp", "pgregory.net/rapid",
			"github.com/rogpeppe/go-internal",
		} {
			if within(d[0], prefix) {
				bad = append(bad, d[0])
			}
		}
		if within(d[0], gvisor) || within(d[0], door) {
			continue
		}
		for _, i := range d[1:] {
			if within(i, gvisor) {
				bad = append(bad, i+" by way of "+d[0])
			}
		}
	}
	return bad
}

// within says whether a package is at that path or below it.
func within(pkg, path string) bool { return pkg == path || strings.HasPrefix(pkg, path+"/") }

func TestTheProductLinksNothingUnwanted(t *testing.T) {
	t.Parallel()
	imports, err := rings.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"list", "-e", "-deps", "-f", "{{.ImportPath}}{{range .Imports}} {{.}}{{end}}"}
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
	var deps [][]string
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		d := strings.Fields(line)
		deps = append(deps, d)
		seen[d[0]] = true
	}
	for _, certain := range []string{"github.com/gofrs/flock", "gvisor.dev/gvisor/pkg/tcpip/stack"} {
		if !seen[certain] {
			t.Fatalf("go list named %d packages, but not %s", len(deps), certain)
		}
	}
	for _, bad := range unwanted(deps) {
		t.Errorf("%s would be part of the product", bad)
	}
}

func TestUnwantedPackagesAreFound(t *testing.T) {
	t.Parallel()
	const stack = "gvisor.dev/gvisor/pkg/tcpip/stack"
	got := unwanted([][]string{
		{"net/http", "net"},
		{"testing"},
		{"testing/fstest", "testing"},
		{"testingx"},
		{stack, "gvisor.dev/gvisor/pkg/tcpip"},
		{rings.Module + "/internal/tunnel/tcp", stack},
		{"golang.zx2c4.com/wireguard/tun/netstack", stack},
		{rings.Module + "/internal/lab", "net", stack},
	})
	want := []string{
		"testing", "testing/fstest",
		stack + " by way of golang.zx2c4.com/wireguard/tun/netstack", stack + " by way of " + rings.Module + "/internal/lab",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
