package cage

import (
	"bytes"
	"context"
	"os"
	"time"
)

// insideEnv names, in the environment of a test binary, the test that was started again in a
// cage.
const insideEnv = "SHUNT_TEST_INSIDE"

// Test is what Inside needs of a *testing.T.
type Test interface {
	Helper()
	Name() string
	Context() context.Context
	TempDir() string
	Skip(args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// Inside runs a test again in a cage of its own, for at most limit, and returns false; there
// it is true. The test binary gives what follows Arg to Init, or to what calls it.
func Inside(t Test, limit time.Duration) bool {
	t.Helper()
	if os.Getenv(insideEnv) == t.Name() {
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: makes namespaces")
	}
	var out bytes.Buffer
	code, err := Enter(t.Context(), Options{
		Command: []string{"/proc/self/exe", "-test.v", "-test.run=^" + t.Name() + "$", "-test.timeout=" + limit.String()}, Temp: t.TempDir(),
		Env: []string{insideEnv + "=" + t.Name(), "PATH=" + os.Getenv("PATH")}, Stdout: &out, Stderr: &out,
	})
	if err != nil || code != 0 {
		t.Fatalf("inside: exit code %d, %v\n%s", code, err, out.String())
	}
	t.Logf("\n%s", out.String())
	return false
}
