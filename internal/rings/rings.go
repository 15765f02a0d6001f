// Package rings holds the import rules of the project as data, and checks a source
// tree against them. Imports point only downward and siblings do not import each other;
// docs/architecture.md draws the picture. The lint configuration states the same rules
// for editors, and a test keeps the two equal.
package rings

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Module is the import path of the project.
const Module = "github.com/shunt-net/shunt"

// Import is one import of one file that is not a test.
type Import struct {
	File string // relative to the root: internal/plane/table.go
	From string // package that imports, relative to the module: internal/plane
	To   string // import path as written: github.com/google/nftables
}

// Fence keeps an outside package to the few packages that exist to deal with it.
type Fence struct {
	Package string   // import path; what lies below it is meant too
	Only    []string // packages of the project that may import it
	Why     string
}

// Rings returns, for each package of the project, the packages of the project that it
// may import. Packages below a listed one (internal/lane/x) follow the same rule. A
// package that is not here has no place yet, which Check reports.
func Rings() map[string][]string {
	adapters := []string{
		"internal/dial", "internal/flow", "internal/host", "internal/knock", "internal/lane", "internal/nft", "internal/notify",
		"internal/plane", "internal/probe", "internal/provider", "internal/tripwire", "internal/tunnel",
	}
	ground := []string{
		"internal/amnezia", "internal/due", "internal/health", "internal/journal", "internal/profile", "internal/run", "internal/secret", "internal/state",
	}
	domains := []string{"internal/edge", "internal/egress"}

	rules := map[string][]string{
		"cmd/shunt": {"internal/cli"},
		// Nothing of the product may depend on its own rules.
		"internal/rings":   {},
		"internal/health":  {},
		"internal/profile": {},
		"internal/amnezia": {"internal/profile"},
		"internal/run":     {},
		"internal/due":     {},
		"internal/secret":  {},
		// The ground ring has one order of its own: records are written through state,
		// and state has the kill points of run.
		"internal/state":   {"internal/run"},
		"internal/journal": {"internal/run", "internal/state"},
		// Keys end at the adapters: a domain knows salted fingerprints, so profile is not here.
		"internal/egress": {"internal/health", "internal/journal", "internal/run", "internal/state"},
		"internal/edge":   {"internal/health", "internal/journal", "internal/run", "internal/state"},
		"internal/config": slices.Concat(domains, ground),
	}
	for _, a := range adapters {
		rules[a] = slices.Concat(domains, ground)
	}
	// Rounds over the domains, with the adapters that hold connections between rounds.
	rules["internal/watchdog"] = slices.Concat([]string{"internal/tripwire"}, domains, ground)
	// Ways to the list are made of several adapters.
	rules["internal/strategy"] = slices.Concat(adapters, domains, ground)
	rules["internal/lab"] = slices.Concat(adapters, []string{"internal/config", "internal/strategy", "internal/watchdog"}, domains, ground)
	rules["internal/cli"] = slices.Concat([]string{"internal/lab", "internal/config", "internal/strategy", "internal/watchdog"}, adapters, domains, ground)
	for _, list := range rules {
		slices.Sort(list)
	}
	return rules
}

// Fences returns the rules for packages of others.
func Fences() []Fence {
	kernel := []string{
		"internal/host", "internal/lab", "internal/lane", "internal/plane", "internal/probe", "internal/tripwire", "internal/tunnel",
	}
	return []Fence{
		{"github.com/spf13/viper", []string{"internal/config"}, "one package reads configuration"},
		{"github.com/spf13/cobra", []string{"internal/cli"}, "one package is the command line"},
		{"os/exec", []string{"internal/lab", "internal/run"}, "run.Command bounds children and keeps locks from them"},
		{"github.com/google/nftables", []string{"internal/lab", "internal/nft", "internal/plane"}, "plane and nft are the doors to nftables"},
		{"github.com/ti-mo/conntrack", []string{"internal/flow", "internal/lab", "internal/plane"}, "plane and flow are the doors to conntrack"},
		{"github.com/vishvananda/netlink", kernel, "a domain knows no kernel"},
		{"golang.zx2c4.com/wireguard/wgctrl", []string{"internal/lab", "internal/lane"}, "lane is the door to devices"},
		{"golang.zx2c4.com/wireguard", slices.Concat([]string{"internal/amnezia"}, kernel), "a domain knows no tunnel"},
		{"golang.zx2c4.com/wireguard/tun/netstack", nil, "tunnel/tcp is the user-space stack"},
		{"gvisor.dev/gvisor", []string{"internal/tunnel"}, "tunnel/tcp is the user-space stack"},
		{"net/http", []string{"internal/knock", "internal/lab", "internal/notify", "internal/provider"}, "provider is the door to the web; knock and notify ask and tell"},
		{"testing", nil, "the product does not carry its tests"},
	}
}

// Check returns what breaks the rules, one line each, sorted; nothing when all is well.
func Check(imports []Import, rings map[string][]string, fences []Fence) []string {
	var bad []string
	for _, i := range imports {
		from := home(i.From)
		allowed, placed := rings[from]
		if !placed {
			bad = append(bad, fmt.Sprintf("%s: package %s has no place in the rings", i.File, from))
			continue
		}
		if to, ours := strings.CutPrefix(i.To, Module+"/"); ours {
			if h := home(to); h != from && !slices.Contains(allowed, h) {
				bad = append(bad, fmt.Sprintf("%s: %s may not import %s", i.File, from, h))
			}
			continue
		}
		if f, fenced := fence(i.To, fences); fenced && !slices.Contains(f.Only, from) {
			bad = append(bad, fmt.Sprintf("%s: %s may not import %s: %s", i.File, from, i.To, f.Why))
		}
	}
	slices.Sort(bad)
	return slices.Compact(bad)
}

// fence finds the most exact fence around an import path.
func fence(importPath string, fences []Fence) (Fence, bool) {
	var found Fence
	for _, f := range fences {
		inside := importPath == f.Package || strings.HasPrefix(importPath, f.Package+"/")
		if inside && len(f.Package) > len(found.Package) {
			found = f
		}
	}
	return found, found.Package != ""
}

// home is the listed package that a path belongs to: its first two elements.
func home(pkg string) string {
	parts := strings.SplitN(pkg, "/", 3)
	return strings.Join(parts[:min(2, len(parts))], "/")
}

// Read collects the imports of every file under root that is not a test. A file that
// does not parse is an error that names it. Folders named testdata, or beginning with a
// dot or an underscore, are left out, as the go tool does.
func Read(root string) ([]Import, error) {
	var imports []Import
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != "." && (base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") || strings.HasSuffix(base, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.ImportsOnly)
		if err != nil {
			return fmt.Errorf("imports of %s: %w", name, err)
		}
		for _, spec := range file.Imports {
			to, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return fmt.Errorf("imports of %s: %w", name, err)
			}
			imports = append(imports, Import{File: name, From: path.Dir(name), To: to})
		}
		return nil
	})
	return imports, err
}
