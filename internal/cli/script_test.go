package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"shunt": func() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ())) },
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			for _, kv := range os.Environ() {
				if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "SHUNT_") {
					env.Setenv(name, "")
				}
			}
			// Another user reaches the work folder and the program.
			bin, _, _ := strings.Cut(env.Getenv("PATH"), string(filepath.ListSeparator))
			for _, dir := range []string{env.WorkDir, filepath.Dir(env.WorkDir), bin, filepath.Dir(bin)} {
				if strings.HasPrefix(dir, os.TempDir()+"/") {
					if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // a test's own folder
						return err
					}
				}
			}
			return nil
		},
		Condition: func(cond string) (bool, error) {
			return cond == "root" && os.Getuid() == 0, nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": runCode,
		},
	})
}

// runCode runs a program and compares its exit code: `code 64 shunt nonsense`.
func runCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N PROGRAM ARG…")
	}
	got := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("%v: exit code %s, want %s", args[1:], got, args[0])
	}
}
