// Command dsbuild builds DeepSpeed wheels with compiled operators, deploys
// them to the nodes of a cluster and proves what every node runs.
package main

import (
	"context"
	"os"

	"github.com/dsbuild/dsbuild/internal/remote"
)

func main() {
	// An ssh that dsbuild has started calls it to ask for a password.
	if code, asked := remote.Askpass(os.Args[1:], os.Stdout); asked {
		os.Exit(code)
	}
	useAccountHome()
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
