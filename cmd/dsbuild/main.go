// Command dsbuild builds DeepSpeed wheels with compiled operators, deploys
// them to the nodes of a cluster and proves what every node runs.
package main

import (
	"context"
	"os"
)

func main() {
	useAccountHome()
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
