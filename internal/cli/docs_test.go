package cli

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shunt-net/shunt/internal/config"
)

// docsRoot is the project's root folder, seen from this package.
const docsRoot = "../.."

// commandTree is the whole tree, with the commands that cobra adds.
func commandTree() *cobra.Command {
	a := newApp(strings.NewReader(""), io.Discard, io.Discard, nil, func() time.Time { return time.Time{} })
	root := newRootCommand(a)
	watchStart(a, root)
	root.InitDefaultHelpCmd()
	return root
}

// leaves are the commands that do something, by their full names.
func leaves(root *cobra.Command) map[string]*cobra.Command {
	out := map[string]*cobra.Command{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if !c.HasSubCommands() {
			out[c.CommandPath()] = c
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	return out
}

// pageOf is the page that a command is explained on.
func pageOf(command string) string {
	words := strings.Fields(command)
	switch {
	case len(words) > 2 && words[1] == "egress":
		return "shunt-egress-" + words[2] + ".md"
	case len(words) > 2 && words[1] == "edge" && (words[2] == "enable" || words[2] == "reset"):
		return "shunt-edge-drain.md" // what an operator says of a candidate
	case len(words) > 2 && words[1] == "edge":
		return "shunt-edge-" + words[2] + ".md"
	case len(words) > 1 && slices.Contains([]string{"config", "lab", "lane", "watchdog"}, words[1]):
		return "shunt-" + words[1] + ".md"
	}
	return "shunt.md"
}

// commandPages reads docs/commands, by file name.
func commandPages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(docsRoot, "docs/commands/*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("docs/commands: %v, %d pages", err, len(files))
	}
	out := map[string]string{}
	for _, f := range files {
		out[filepath.Base(f)] = readPage(t, f)
	}
	return out
}

func readPage(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// allPages are README.md and everything under docs, by path.
func allPages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{"README.md": readPage(t, filepath.Join(docsRoot, "README.md"))}
	for _, glob := range []string{"docs/*.md", "docs/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(docsRoot, glob))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			name, err := filepath.Rel(docsRoot, f)
			if err != nil {
				t.Fatal(err)
			}
			out[name] = readPage(t, f)
		}
	}
	return out
}

// section is the text under a heading, up to the next of its level.
func section(page, title string) string {
	_, rest, _ := strings.Cut(page, "\n## "+title+"\n")
	body, _, _ := strings.Cut(rest, "\n## ")
	return body
}

// firstCells are the backticked words of the first cell of each row of the tables.
func firstCells(text string) []string {
	var out []string
	word := regexp.MustCompile("`([^`]+)`")
	for line := range strings.SplitSeq(text, "\n") {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cell, _, _ := strings.Cut(strings.ReplaceAll(line[2:], `\|`, ","), " | ")
		for _, m := range word.FindAllStringSubmatch(cell, -1) {
			out = append(out, m[1])
		}
	}
	return out
}

// flagNames takes "--rounds N" and "-v" for rounds and v.
func flagNames(words []string) []string {
	var out []string
	for _, w := range words {
		if strings.HasPrefix(w, "-") {
			name, _, _ := strings.Cut(strings.TrimLeft(w, "-"), " ")
			out = append(out, name)
		}
	}
	return out
}

func TestEveryCommandStandsOnItsPage(t *testing.T) {
	t.Parallel()
	pages := commandPages(t)
	wanted := map[string]bool{}
	for name, c := range leaves(commandTree()) {
		page := pageOf(name)
		wanted[page] = true
		if c.Name() == "bash" || c.Name() == "fish" || c.Name() == "powershell" || c.Name() == "zsh" {
			name = "shunt completion" // their page has them as one line
			if !strings.Contains(section(pages[page], "Synopsis"), c.Name()) {
				t.Errorf("%s: the synopsis has no shell %s", page, c.Name())
			}
		}
		if !strings.Contains(section(pages[page], "Synopsis")+"\n", "\n"+name) {
			t.Errorf("%s: the synopsis has no line %q", page, name)
		}
	}
	for page := range pages {
		if !wanted[page] {
			t.Errorf("docs/commands/%s explains no command of the tree", page)
		}
	}
}

func TestFlagsStandOnTheirPageAndNoOthers(t *testing.T) {
	t.Parallel()
	root := commandTree()
	global := map[string]bool{"help": true}
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		global[f.Name] = true
		if f.Shorthand != "" {
			global[f.Shorthand] = true
		}
	})
	own := map[string]map[string]bool{} // page -> flags of its commands
	shown := map[string]map[string]bool{}
	for name, c := range leaves(root) {
		page := pageOf(name)
		if own[page] == nil {
			own[page], shown[page] = map[string]bool{}, map[string]bool{}
		}
		if strings.HasPrefix(name, "shunt completion") {
			continue // cobra's own
		}
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			own[page][f.Name] = true
			shown[page][f.Name] = !f.Hidden && f.Name != "help"
		})
	}
	for page, text := range commandPages(t) {
		documented := flagNames(firstCells(section(text, "Flags")))
		for _, f := range documented {
			if !own[page][f] && !global[f] {
				t.Errorf("%s documents --%s, which no command of it has", page, f)
			}
		}
		for f, show := range shown[page] {
			if show && !slices.Contains(documented, f) {
				t.Errorf("%s does not document --%s", page, f)
			}
		}
	}
	for _, page := range []struct{ name, text string }{
		{"shunt.md", section(commandPages(t)["shunt.md"], "Flags")},
		{"glossary.md", section(allPages(t)["docs/glossary.md"], "Flags that mean the same everywhere")},
	} {
		documented := flagNames(firstCells(page.text))
		for f := range global {
			if f != "help" && !slices.Contains(documented, f) {
				t.Errorf("%s does not document the flag %s of every command", page.name, f)
			}
		}
	}
}

// shownCommands are the command lines of shunt in the code blocks of a page.
func shownCommands(page string) []string {
	var out []string
	inside := false
	for line := range strings.SplitSeq(page, "\n") {
		if strings.HasPrefix(line, "```") {
			inside = !inside
			continue
		}
		if !inside {
			continue
		}
		line = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "$ "), "sudo ")
		line, _, _ = strings.Cut(line, "#")
		for part := range strings.SplitSeq(line, "&&") {
			part, _, _ = strings.Cut(strings.TrimSpace(part), " >")
			part, _, _ = strings.Cut(part, " 2>")
			if part == "shunt" || strings.HasPrefix(part, "shunt ") && !strings.ContainsAny(part, "[|…") && !strings.Contains(part, "...") {
				out = append(out, part)
			}
		}
	}
	return out
}

// TestCommandLinesOfThePagesParse takes every line that a reader could copy.
func TestCommandLinesOfThePagesParse(t *testing.T) {
	t.Parallel()
	meant := map[string]bool{"shunt egress repiar": true} // shows what a mistype is answered with
	seen := 0
	for name, text := range allPages(t) {
		for _, line := range shownCommands(text) {
			if strings.HasPrefix(line, "shunt:") || meant[line] || strings.Contains(line, "COMMAND") {
				continue
			}
			seen++
			c, rest, err := commandTree().Find(strings.Fields(line)[1:])
			if err == nil {
				err = c.ParseFlags(rest)
			}
			if err == nil && c.HasSubCommands() && c.HasParent() {
				err = c.Args(c, c.Flags().Args())
			}
			if err == nil && !c.HasSubCommands() && c.Args != nil {
				err = c.Args(c, c.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: %q: %v", name, line, err)
			}
		}
	}
	if seen < 40 {
		t.Errorf("only %d command lines were found in the pages", seen)
	}
}

func TestExitCodesAreDocumented(t *testing.T) {
	t.Parallel()
	codes := []int{exitDone, exitFailed, exitPartly, exitHeld, exitPending, exitUsage, exitBusy, exitConfig, exitInterrupted}
	number := regexp.MustCompile(`(?m)^\| (\d+) \|`)
	of := func(text string) []int {
		var out []int
		for _, m := range number.FindAllStringSubmatch(text, -1) {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, n)
		}
		return out
	}
	pages := commandPages(t)
	for where, text := range map[string]string{
		"docs/glossary.md":       section(allPages(t)["docs/glossary.md"], "Exit codes"),
		"docs/commands/shunt.md": section(pages["shunt.md"], "Exit codes"),
	} {
		if diff := gocmp.Diff(codes, of(text)); diff != "" {
			t.Errorf("exit codes of %s (-want +got):\n%s", where, diff)
		}
	}
	for _, c := range codes {
		if !strings.Contains(rootLong, "\n  "+strconv.Itoa(c)+" ") {
			t.Errorf("shunt --help does not explain exit code %d", c)
		}
	}
	for page, text := range pages {
		got := of(section(text, "Exit codes"))
		for _, n := range got {
			if !slices.Contains(codes, n) {
				t.Errorf("%s: there is no exit code %d", page, n)
			}
		}
		if !slices.Contains(got, exitDone) || !slices.Contains(got, exitUsage) || !slices.IsSortedFunc(got, cmp.Compare[int]) {
			t.Errorf("%s: exit codes %v, want 0 and 64 among them, in order", page, got)
		}
	}
}

// killPoints are the names that the sources give to run.Point.
func killPoints(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	name := regexp.MustCompile(`"([a-z]+\.[a-z-]+)"`)
	for _, dir := range []string{"edge", "egress", "flow", "journal", "lane", "nft", "plane", "state"} {
		files, err := filepath.Glob(filepath.Join(docsRoot, "internal", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			text := readPage(t, f)
			if !strings.Contains(text, "run.Point(") {
				continue
			}
			for _, m := range name.FindAllStringSubmatch(text, -1) {
				out[m[1]] = true
			}
		}
	}
	return out
}

// TestKeysOfThePagesExist takes every word in backticks that looks like a key.
func TestKeysOfThePagesExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"egress": true}
	sections := map[string]bool{"alerts": true, "edge": true, "egress": true, "hooks": true, "log": true, "watchdog": true}
	for _, k := range config.Keys() {
		path := strings.ReplaceAll(k.Path, "[]", "")
		for p := path; p != ""; { // mappings are keys too
			known[p] = true
			i := strings.LastIndexByte(p, '.')
			p = p[:max(i, 0)]
		}
		if rest, ok := strings.CutPrefix(path, "egress."); ok {
			first, _, _ := strings.Cut(rest, ".")
			sections[first] = true
		}
	}
	points := killPoints(t)
	word := regexp.MustCompile("`((?:--set )?[a-z_]+(?:\\[\\])?(?:\\.[a-z_]+(?:\\[\\])?)+)(?:=[^`]*|: [^`]*)?`")
	seen := 0
	for name, text := range allPages(t) {
		for _, m := range word.FindAllStringSubmatch(text, -1) {
			key := strings.ReplaceAll(strings.TrimPrefix(m[1], "--set "), "[]", "")
			first, _, _ := strings.Cut(key, ".")
			file := slices.Contains([]string{".json", ".conf", ".tsv", ".yaml", ".md", ".kv", ".service", ".timer", ".target"}, filepath.Ext(key))
			if !sections[first] || file || points[key] {
				continue
			}
			seen++
			if !known[key] && !known["egress."+key] {
				t.Errorf("%s names the key %s, which does not exist", name, m[1])
			}
		}
	}
	if seen < 30 {
		t.Errorf("only %d keys were found in the pages", seen)
	}
}

func TestKillPointsOfThePageAreThoseOfTheSources(t *testing.T) {
	t.Parallel()
	points := killPoints(t)
	body := section(allPages(t)["docs/architecture.md"], "A repair, and what is durable when")
	word := regexp.MustCompile("`((?:attempt|count|edge|file|flows|generation|intent|journal|kv|lane|modes?|plane|pool|quarantine|users)\\.[a-z-]+)`")
	documented := map[string]bool{}
	for _, m := range word.FindAllStringSubmatch(body, -1) {
		documented[m[1]] = true
		if !points[m[1]] && filepath.Ext(m[1]) != ".tsv" && filepath.Ext(m[1]) != ".json" {
			t.Errorf("docs/architecture.md names the kill point %s, which no source has", m[1])
		}
	}
	call := regexp.MustCompile(`run\.Point\(ctx, "([^"]+)"\)`)
	files, err := filepath.Glob(filepath.Join(docsRoot, "internal/*/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		for _, m := range call.FindAllStringSubmatch(readPage(t, f), -1) {
			seen++
			if !documented[m[1]] {
				t.Errorf("docs/architecture.md does not name the kill point %s of %s", m[1], filepath.Base(f))
			}
		}
	}
	if seen == 0 {
		t.Error("no kill point was found in the sources")
	}
}

// TestTheExampleOfTheReadmePasses checks the configuration that a newcomer copies.
func TestTheExampleOfTheReadmePasses(t *testing.T) {
	t.Parallel()
	_, rest, found := strings.Cut(allPages(t)["README.md"], "```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	if !found {
		t.Fatal("README.md has no example of a configuration")
	}
	file := filepath.Join(t.TempDir(), "shunt.yaml")
	if err := os.WriteFile(file, []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	a := newApp(strings.NewReader(""), &out, &errs, nil, time.Now)
	if code := a.run(t.Context(), []string{"config", "check", "--config", file}); code != exitDone || errs.Len() > 0 {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
}
