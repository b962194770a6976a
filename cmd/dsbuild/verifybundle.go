package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/deploy/changes"
	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

// newVerifyBundleCommand is hidden: nodes run it, on a dsbuild that the driver has sent.
func newVerifyBundleCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    signing.VerifierCommand,
		Short:  "Verify a bundle of sigstore for the agent on this node",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return signing.AnswerQuestion(a.stdin, a.stdout, time.Now())
		},
	}
}

// nodeVerifier finds the dsbuild that verifies bundles on nodes, and reads each file only once.
func nodeVerifier() changes.FindVerifier {
	var mu sync.Mutex
	found := map[string]wheels.File{}
	return func(platform string) (wheels.File, error) {
		mu.Lock()
		defer mu.Unlock()
		if f, ok := found[platform]; ok {
			return f, nil
		}
		own, err := os.Executable()
		if err != nil {
			return wheels.File{}, err
		}
		path, err := dsbuildFor(platform, own)
		if err != nil {
			return wheels.File{}, err
		}
		sum, size, err := wheel.HashFile(path)
		if err == nil {
			found[platform] = wheels.File{Path: path, SHA256: sum, Size: size}
		}
		return found[platform], err
	}
}

// dsbuildFor returns the path of a dsbuild that runs on nodes of a platform such as linux_x86_64: own,
// which is this very program, or one beside it, compiled by 'make drivers'.
func dsbuildFor(platform, own string) (string, error) {
	system, machine, _ := strings.Cut(platform, "_")
	arch := cmp.Or(map[string]string{"x86_64": "amd64", "aarch64": "arm64"}[machine], machine)
	if system == runtime.GOOS && arch == runtime.GOARCH {
		return own, nil
	}
	name := "dsbuild-" + system + "-" + arch
	path := filepath.Join(filepath.Dir(own), name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", hint.With(fmt.Errorf("the node needs a dsbuild to verify bundles of sigstore, and this one does not run there: it is for %s/%s, the node is %s", runtime.GOOS, runtime.GOARCH, platform),
			"run dsbuild on the system of the nodes, or put the dsbuild of this release for them beside this one, as %s", name)
	}
	return path, nil
}
