package rings_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/shunt-net/shunt/internal/rings"
)

const root = "../.."

func TestTheSourceTreeKeepsTheRings(t *testing.T) {
	t.Parallel()
	imports, err := rings.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	// Read has to have seen the tree: this package's own imports are in it.
	self := rings.Import{File: "internal/rings/rings.go", From: "internal/rings", To: "go/parser"}
	if !slices.Contains(imports, self) {
		t.Fatalf("%+v was not found among %d imports", self, len(imports))
	}
	for _, bad := range rings.Check(imports, rings.Rings(), rings.Fences()) {
		t.Error(bad)
	}
}

// TestBrokenGraphsAreFound shows that the check above can fail.
func TestBrokenGraphsAreFound(t *testing.T) {
	t.Parallel()
	ours := func(from, to string) rings.Import {
		return rings.Import{File: from + "/x.go", From: from, To: rings.Module + "/" + to}
	}
	outside := func(from, to string) rings.Import {
		return rings.Import{File: from + "/x.go", From: from, To: to}
	}
	tests := []struct {
		name   string
		graph  []rings.Import
		expect []string
	}{
		{"the wanted direction", []rings.Import{
			ours("cmd/shunt", "internal/cli"), ours("internal/cli", "internal/plane"),
			ours("internal/plane", "internal/egress"), ours("internal/egress", "internal/health"),
			ours("internal/journal", "internal/state"), ours("internal/lab", "internal/lane"),
		}, nil},
		{"a package below a listed one belongs to it", []rings.Import{
			ours("internal/lane/service", "internal/lane"), ours("internal/lane", "internal/lane/service"),
		}, nil},
		{
			"the command knows only the command tree",
			[]rings.Import{ours("cmd/shunt", "internal/egress")},
			[]string{"cmd/shunt/x.go: cmd/shunt may not import internal/egress"},
		},
		{
			"an adapter imports its sibling",
			[]rings.Import{ours("internal/lane", "internal/plane")},
			[]string{"internal/lane/x.go: internal/lane may not import internal/plane"},
		},
		{
			"a subpackage of an adapter imports its sibling",
			[]rings.Import{ours("internal/lane/service", "internal/plane")},
			[]string{"internal/lane/service/x.go: internal/lane may not import internal/plane"},
		},
		{
			"a domain imports an adapter",
			[]rings.Import{ours("internal/egress", "internal/tunnel")},
			[]string{"internal/egress/x.go: internal/egress may not import internal/tunnel"},
		},
		{
			"keys reach the domain",
			[]rings.Import{ours("internal/egress", "internal/profile")},
			[]string{"internal/egress/x.go: internal/egress may not import internal/profile"},
		},
		{
			"the ground ring imports upward",
			[]rings.Import{ours("internal/state", "internal/egress")},
			[]string{"internal/state/x.go: internal/state may not import internal/egress"},
		},
		{
			"state and journal the wrong way round",
			[]rings.Import{ours("internal/state", "internal/journal")},
			[]string{"internal/state/x.go: internal/state may not import internal/journal"},
		},
		{
			"the lab drives the command tree",
			[]rings.Import{ours("internal/lab", "internal/cli")},
			[]string{"internal/lab/x.go: internal/lab may not import internal/cli"},
		},
		{
			"a package without a place",
			[]rings.Import{ours("internal/util", "internal/state")},
			[]string{"internal/util/x.go: package internal/util has no place in the rings"},
		},
		{
			"an import of a package without a place",
			[]rings.Import{ours("internal/cli", "internal/util")},
			[]string{"internal/cli/x.go: internal/cli may not import internal/util"},
		},
		{
			"viper outside config",
			[]rings.Import{outside("internal/cli", "github.com/spf13/viper")},
			[]string{"internal/cli/x.go: internal/cli may not import github.com/spf13/viper: one package reads configuration"},
		},
		{"the more exact fence wins", []rings.Import{
			outside("internal/tunnel", "golang.zx2c4.com/wireguard/device"),
			outside("internal/tunnel", "golang.zx2c4.com/wireguard/wgctrl/wgtypes"),
		}, []string{"internal/tunnel/x.go: internal/tunnel may not import golang.zx2c4.com/wireguard/wgctrl/wgtypes: lane is the door to devices"}},
		{
			"a user-space stack outside tunnel",
			[]rings.Import{
				outside("internal/tunnel/tcp", "gvisor.dev/gvisor/pkg/tcpip"), outside("internal/probe", "gvisor.dev/gvisor/pkg/tcpip"),
				outside("internal/lab", "golang.zx2c4.com/wireguard/tun/netstack"),
			},
			[]string{
				"internal/lab/x.go: internal/lab may not import golang.zx2c4.com/wireguard/tun/netstack: tunnel/tcp is the user-space stack",
				"internal/probe/x.go: internal/probe may not import gvisor.dev/gvisor/pkg/tcpip: tunnel/tcp is the user-space stack",
			},
		},
		{"a name that only begins alike is not fenced", []rings.Import{outside("internal/state", "os/execute")}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := rings.Check(tt.graph, rings.Rings(), rings.Fences())
			if diff := cmp.Diff(tt.expect, got); diff != "" {
				t.Error("(-want +got)\n" + diff)
			}
		})
	}
}

// TestTheRingsHaveNoWayBack walks the table itself: a rule that let two packages import
// each other, however far around, would be no ring.
func TestTheRingsHaveNoWayBack(t *testing.T) {
	t.Parallel()
	table := rings.Rings()
	var walk func(at string, seen []string)
	walk = func(at string, seen []string) {
		if slices.Contains(seen, at) {
			t.Fatalf("a circle: %s", strings.Join(append(seen, at), " -> "))
		}
		for _, next := range table[at] {
			if _, known := table[next]; !known {
				t.Fatalf("%s may import %s, which has no place", at, next)
			}
			walk(next, append(slices.Clone(seen), at))
		}
	}
	for _, at := range slices.Sorted(maps.Keys(table)) {
		walk(at, nil)
	}
}

func TestReadNamesTheFileThatDoesNotParse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "broken.go"), []byte("package p\nimport nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := rings.Read(dir); err == nil || !strings.Contains(err.Error(), "broken.go") {
		t.Fatalf("error %v does not name broken.go", err)
	}
}

// TestLintStatesTheSameRules keeps .ci/golangci.yml equal to the table.
func TestLintStatesTheSameRules(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, ".ci/golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}
	type deny struct {
		Pkg  string `yaml:"pkg"`
		Desc string `yaml:"desc"`
	}
	type rule struct {
		ListMode string   `yaml:"list-mode"`
		Files    []string `yaml:"files"`
		Allow    []string `yaml:"allow"`
		Deny     []deny   `yaml:"deny"`
	}
	var lint struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]rule `yaml:"rules"`
				} `yaml:"depguard"`
			} `yaml:"settings"`
		} `yaml:"linters"`
	}
	if err := yaml.Unmarshal(text, &lint); err != nil {
		t.Fatal(err)
	}

	want := map[string]rule{}
	for pkg, allowed := range rings.Rings() {
		r := rule{
			ListMode: "lax",
			Files:    []string{"**/" + pkg + "/**", "!$test"},
			Allow:    []string{rings.Module + "/" + pkg},
			Deny:     []deny{{rings.Module, "see internal/rings"}},
		}
		for _, a := range allowed {
			r.Allow = append(r.Allow, rings.Module+"/"+a)
		}
		want[pkg] = r
	}
	// depguard has no "most exact fence": one rule per fence, the outer one lets the inner go.
	for _, f := range rings.Fences() {
		r := rule{ListMode: "lax", Files: []string{"$all"}, Deny: []deny{{f.Package, f.Why}}}
		for _, only := range f.Only {
			r.Files = append(r.Files, "!**/"+only+"/**")
		}
		r.Files = append(r.Files, "!$test")
		for _, inner := range rings.Fences() {
			if strings.HasPrefix(inner.Package, f.Package+"/") {
				r.Allow = append(r.Allow, inner.Package)
			}
		}
		// A dot in a key would split it for viper, which reads the lint configuration.
		want[strings.ReplaceAll(f.Package, ".", "_")] = r
	}
	if diff := cmp.Diff(want, lint.Linters.Settings.Depguard.Rules); diff != "" {
		t.Error("(-table +lint)\n" + diff)
	}
}
