// Command shunt keeps traffic on paths that work.
package main

import (
	"os"

	"github.com/shunt-net/shunt/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}
