package story

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A point that the scenario does not know of would never be killed at.
func TestTheScenarioKnowsEveryKillPointOfTheSource(t *testing.T) {
	packages := map[string][]*ast.File{}
	set := token.NewFileSet()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "lab" || d.Name() == "testdata") {
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(set, path, nil, 0)
		packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for dir, files := range packages {
		names, unknown := pointsOf(files)
		got = append(got, names...)
		for _, pos := range unknown {
			t.Errorf("%s: the name of a point in %s can't be told from the source", set.Position(pos), dir)
		}
	}
	// The edge's points have a scenario of their own.
	got = slices.DeleteFunc(got, func(name string) bool { return strings.HasPrefix(name, "edge.") })
	slices.Sort(got)
	want := killPoints()
	if diff := cmp.Diff(slices.Compact(got), want); diff != "" {
		t.Errorf("kill points (-source +scenario):\n%s", diff)
	}
}

// pointsOf finds the names that a package calls run.Point with: written there, or handed to
// a function of the package that passes one of its parameters on.
func pointsOf(files []*ast.File) (names []string, unknown []token.Pos) {
	carriers := map[string]int{"run.Point": 1} // function -> parameter that is the name
	for range 2 {
		names, unknown = nil, nil
		for _, f := range files {
			ast.PreorderStack(f, nil, func(n ast.Node, stack []ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				i, ok := carriers[nameOf(call.Fun)]
				if !ok || i >= len(call.Args) {
					return true
				}
				switch arg := call.Args[i].(type) {
				case *ast.BasicLit:
					if s, err := strconv.Unquote(arg.Value); err == nil {
						names = append(names, s)
						return true
					}
				case *ast.Ident:
					if c, ok := parameter(stack, arg.Name); ok {
						carriers[c.function] = c.index
						return true
					}
				}
				unknown = append(unknown, call.Pos())
				return true
			})
		}
	}
	return names, unknown
}

type carrier struct {
	function string
	index    int
}

// parameter says which parameter of which function around it an identifier is.
func parameter(stack []ast.Node, name string) (carrier, bool) {
	for i := len(stack) - 1; i >= 0; i-- {
		var kind *ast.FuncType
		function := ""
		switch f := stack[i].(type) {
		case *ast.FuncDecl:
			kind, function = f.Type, f.Name.Name
		case *ast.FuncLit:
			kind = f.Type
			if a, ok := stack[i-1].(*ast.AssignStmt); ok && len(a.Lhs) == 1 {
				function = nameOf(a.Lhs[0])
			}
		default:
			continue
		}
		n := 0
		for _, field := range kind.Params.List {
			for _, p := range field.Names {
				if p.Name == name {
					return carrier{function, n}, function != ""
				}
				n++
			}
		}
	}
	return carrier{}, false
}

// nameOf is the name of what is called: f, or run.Point; "" = neither.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok && x.Name == "run" {
			return "run." + e.Sel.Name
		}
	}
	return ""
}

func TestTheTableOfKillsAddsUp(t *testing.T) {
	table := killTable{}
	table.add("file.written", "repair", false)
	table.add("file.written", "repair", true)
	table.add("file.written", "rebalance", false)
	table.add("plane.moved", "repair", false)
	if table.kills() != 4 || table.inconsistent() != 1 || table.killsAt("file.written") != 3 || table.killsAt("nowhere") != 0 {
		t.Errorf("%d kills, %d inconsistent, %d at file.written", table.kills(), table.inconsistent(), table.killsAt("file.written"))
	}
	want := []string{
		"point                  command                            kills inconsistent",
		"file.written           rebalance                              1            0",
		"file.written           repair                                 2            1",
		"plane.moved            repair                                 1            0",
	}
	if diff := cmp.Diff(want, table.lines()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}
