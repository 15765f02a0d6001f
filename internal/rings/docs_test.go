package rings_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pages returns the text of every Markdown file of the project by its path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata" || d.Name() == "build"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".md"):
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		found[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// anchors are the link targets that a page's headings make.
func anchors(page string) []string {
	var found []string
	for line := range strings.SplitSeq(page, "\n") {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		title := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		title = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(title, "")
		found = append(found, strings.ReplaceAll(title, " ", "-"))
	}
	return found
}

// deadLinks returns the relative links of pages that lead nowhere. exists says whether a
// path of the project is there.
func deadLinks(pages map[string]string, exists func(path string) bool) []string {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	var dead []string
	for name, text := range pages {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := name
			if file != "" {
				target = filepath.Join(filepath.Dir(name), file)
			}
			page, known := pages[target]
			if anchor != "" && known && !slices.Contains(anchors(page), anchor) || !known && !exists(target) {
				dead = append(dead, name+" -> "+m[1])
			}
		}
	}
	slices.Sort(dead)
	return dead
}

func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	t.Parallel()
	exists := func(path string) bool {
		_, err := os.Stat(filepath.Join(root, path))
		return err == nil
	}
	for _, dead := range deadLinks(pages(t), exists) {
		t.Error(dead)
	}

	broken := map[string]string{"a.md": "# One two\n[x](b.md) [y](#one-two) [z](#three) [w](https://example.org/q)"}
	got := deadLinks(broken, func(string) bool { return false })
	if want := []string{"a.md -> #three", "a.md -> b.md"}; !slices.Equal(got, want) {
		t.Errorf("dead links of a broken page: %q, want %q", got, want)
	}
}

func TestPagesHaveTheirSections(t *testing.T) {
	t.Parallel()
	sections := map[string][]string{
		"docs/adr/0":     {"Date: 20", "## Context", "## Decision", "## Consequences"},
		"docs/commands/": {"## Name", "## Synopsis", "## Reads and writes", "## What it does", "## Flags", "## Exit codes", "## Examples", "## See also"},
	}
	all := pages(t)
	for prefix, wanted := range sections {
		seen := 0
		for name, text := range all {
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			seen++
			for _, w := range wanted {
				if !strings.Contains(text, "\n"+w) {
					t.Errorf("%s has no %q", name, w)
				}
			}
		}
		if seen == 0 {
			t.Errorf("no page begins with %s", prefix)
		}
	}
	opening := all["README.md"][:min(200, len(all["README.md"]))]
	if !strings.Contains(opening, "\nmake demo ") || !strings.Contains(opening, "\nmake test ") {
		t.Error("README.md does not open with make demo and make test")
	}
}

func TestChangeNotesKeepTheirForm(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^changelog/[^/]+/(added|changed|fixed|removed|security)-[a-z0-9-]+\.md$`)
	for name, text := range pages(t) {
		if !strings.HasPrefix(name, "changelog/") || name == "changelog/README.md" {
			continue
		}
		first, _, _ := strings.Cut(text, "\n")
		if !form.MatchString(name) || first == "" || len([]rune(first)) > 120 || !strings.HasSuffix(first, ".") {
			t.Errorf("%s: want KIND-some-words.md and a first line of one sentence, at most 120 characters", name)
		}
	}
}

// TestTheGlossaryKnowsEveryCode takes the codes from the sources, so that a new one can't
// be forgotten.
func TestTheGlossaryKnowsEveryCode(t *testing.T) {
	t.Parallel()
	glossary := pages(t)["docs/glossary.md"]
	for _, from := range []struct{ folder, prefix string }{
		{"internal/egress", "Held"}, {"internal/health", "Reason"}, {"internal/state", "Mode"},
	} {
		codes := constants(t, filepath.Join(root, from.folder), from.prefix)
		if len(codes) == 0 {
			t.Errorf("%s has no constants %s…", from.folder, from.prefix)
		}
		for name, code := range codes {
			if code != "" && !strings.Contains(glossary, "| `"+code+"` |") {
				t.Errorf("docs/glossary.md does not explain %s (%s of %s)", code, name, from.folder)
			}
		}
	}
}

// constants returns the string constants of a package whose names begin with prefix.
func constants(t *testing.T, folder, prefix string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Names) != len(spec.Values) {
				return true
			}
			for i, id := range spec.Names {
				lit, ok := spec.Values[i].(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING || !strings.HasPrefix(id.Name, prefix) {
					continue
				}
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				found[id.Name] = text
			}
			return true
		})
	}
	return found
}
