package nightly_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/release/nightly"
)

// A command gets the notice on standard input, and not among its arguments.
func TestNotifyCommand(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	report := &nightly.Report{Dir: "/state", Ended: time.Now()}
	command := []string{"/bin/sh", "-c", `{ cat; echo "report=$DSBUILD_REPORT args=$#"; } >"$0"`, out}
	if err := nightly.Notify(t.Context(), command, report, "ci", errors.New("it broke")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(text), "failed: it broke\n") || !strings.Contains(string(text), "/state/report.json args=0") {
		t.Errorf("%s %v", text, err)
	}
	command = []string{"/bin/sh", "-c", "echo s3cret >&2; exit 3"}
	if err := nightly.Notify(t.Context(), command, nil, "ci", errors.New("it broke")); err == nil || err.Error() != "command sh: exit status 3" {
		t.Errorf("%v", err)
	}
	command = []string{filepath.Join(t.TempDir(), "missing")}
	if err := nightly.Notify(t.Context(), command, nil, "ci", errors.New("it broke")); err == nil {
		t.Error("a command that does not exist")
	}
}

// What is wrong with notify is said before the night.
func TestNotifyRead(t *testing.T) {
	c, dir, err := read(t, "wheels: {wheels: [{arch: 8.0}]}\nnotify: [./tell.sh, admin]\n")
	if err != nil || len(c.Notify) != 2 || c.Notify[0] != filepath.Join(dir, "tell.sh") {
		t.Errorf("%+v %v", c.Notify, err)
	}
	for text, want := range map[string]string{
		"{url: 'https://x/'}": "notify must be a list", "'https://x/'": "URLs are not supported", "mail admin": "shell commands and URLs are not supported", "''": "missing program in notify", "[]": "notify",
	} {
		if _, _, err := read(t, "wheels: {wheels: [{arch: 8.0}]}\nnotify: "+text+"\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
