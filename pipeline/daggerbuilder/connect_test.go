//go:build unix

package daggerbuilder

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dagger.io/dagger"

	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// A session whose program ignores its end, as Dagger's does after its engine was killed, leaves no
// process behind.
func TestCloseKillsTheSession(t *testing.T) {
	dir := t.TempDir()
	program, number := filepath.Join(dir, "dagger"), filepath.Join(dir, "pid")
	text := fmt.Sprintf("#!/bin/sh\necho $$ >%q\necho '{\"port\": 1, \"session_token\": \"x\"}'\nexec sleep 60\n", number)
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(engine.CLIVariable, program)
	steps, err := newReceiver()
	if err != nil {
		t.Fatal(err)
	}
	defer steps.close()
	var opts []dagger.ClientOpt
	for _, v := range steps.environment() {
		opts = append(opts, dagger.WithEnvironmentVariable(v[0], v[1]))
	}
	client, err := dagger.Connect(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	if err := closeWithin(client, 100*time.Millisecond, steps.url); err == nil {
		t.Error("no error")
	}
	pid, err := os.ReadFile(number)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %s is left", pid)
		}
	}
}
