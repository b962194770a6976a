package engine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// CLIVariable names the dagger program to use. The Dagger client reads it, too.
const CLIVariable = "_EXPERIMENTAL_DAGGER_CLI_BIN"

// findCLI returns the dagger program that dsbuild talks through: the one that the user names,
// else the one of dsbuild's own engine. If there is neither, it announces that the Dagger client
// will download the program, and returns "".
func (f *Finder) findCLI() (string, error) {
	if f.CLI != "" {
		path, err := exec.LookPath(f.CLI)
		if err != nil {
			return "", fault.WithHint(fmt.Errorf("%s=%s: %w", CLIVariable, f.CLI, err),
				"it must name the dagger program of %s; without it, dsbuild downloads one", Version)
		}
		return path, nil
	}
	path := filepath.Join(f.Home, "bin", "dagger")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if _, err := os.Stat(downloadedCLI()); err != nil {
		f.Note("dsbuild downloads the dagger program once, from %s to %s; without internet, put it there (docs/airgap.md)", cliURL(), downloadedCLI())
	}
	return "", nil
}

// downloadedCLI returns the path where the Dagger client keeps the program that it downloads.
func downloadedCLI() string {
	name := "dagger-" + strings.TrimPrefix(Version, "v")
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(xdg.CacheHome, "dagger", name)
}

// cliURL returns the URL from which the Dagger client downloads its program.
func cliURL() string {
	ending := "tar.gz"
	if runtime.GOOS == "windows" {
		ending = "zip"
	}
	return fmt.Sprintf("https://dl.dagger.io/dagger/releases/%s/dagger_%s_%s_%s.%s", strings.TrimPrefix(Version, "v"), Version, runtime.GOOS, runtime.GOARCH, ending)
}

// Explain adds a remedy to an error of the Dagger client.
func (e Engine) Explain(err error) error {
	c, inContainer := e.Container()
	switch {
	case err == nil:
		return nil
	case inContainer && strings.Contains(err.Error(), "incompatible engine version"):
		return fault.WithHint(err, "%s", c.fill("the container NAME runs an engine that is not version "+Version+"; remove it, its cache and its image, and dsbuild pulls the right one: CLIENT rm -fv NAME && CLIENT rmi IMAGE"))
	case inContainer && strings.Contains(err.Error(), "operation not permitted"):
		return fault.WithHint(err, "%s", c.fill(privilegesHint))
	case strings.Contains(err.Error(), "dl.dagger.io"):
		return fault.WithHint(err, "on a machine with internet, take the program dagger out of %s; put it here as %s, or name it: %s=/path/dagger (docs/airgap.md)", cliURL(), downloadedCLI(), CLIVariable)
	}
	return err
}
