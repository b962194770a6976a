//go:build unix

package daggerbuilder

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// The Dagger client waits five minutes for a session. Where the engine's container
// ends meanwhile, that is told at once.
func TestContainerEndsWhileConnecting(t *testing.T) {
	dir := t.TempDir()
	ended := filepath.Join(dir, "ended")
	programs := map[string]string{
		"docker": fmt.Sprintf(`case "$1 $2" in
"container inspect")
	running=true
	[ ! -e %q ] || running=false
	echo "[{\"State\": {\"Running\": $running, \"ExitCode\": 137}}]" ;;
"logs --tail") echo its last words ;;
esac
`, ended),
		"dagger": fmt.Sprintf("touch %q\nexec cat\n", ended), // until its input ends, and says nothing
	}
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv(engine.CLIVariable, "") // Connect sets it
	e := engine.Engine{Address: "image+docker://" + engine.Image, CLI: filepath.Join(dir, "dagger"), How: "docker"}
	began := time.Now()
	_, _, err := Connect(t.Context(), e, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "ended meanwhile, with exit code 137") || !strings.Contains(err.Error(), "its last words") {
		t.Error(err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("told after %s", took)
	}
}
