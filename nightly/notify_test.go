package nightly_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/nightly"
)

func failedNight() *nightly.Report {
	return &nightly.Report{
		ID: "20260101T000000Z", Dir: "state", Ended: time.Unix(1, 0),
		Entries: []*nightly.EntryReport{{Name: "a@main", Outcome: nightly.Outcome{Status: nightly.Failed}}, {Name: "b@main", Outcome: nightly.Outcome{Status: nightly.Built}}},
	}
}

// A server gets what failed, as JSON; what it does with it is in the error,
// without the URL, which may hold a secret.
func TestNotifyURL(t *testing.T) {
	answer := http.StatusNoContent
	var got nightly.Notice
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || r.URL.Path != "/hook/s3cret" || json.Unmarshal(body, &got) != nil {
			t.Errorf("%s %s: %s", r.Method, r.URL, body)
		}
		if answer == http.StatusFound {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(answer)
	}))
	defer server.Close()
	n := nightly.Notify{URL: server.URL + "/hook/s3cret"}
	notice := nightly.NewNotice(failedNight(), "ci on host", errors.New("1 of 2 wheels failed"))
	if err := n.Send(t.Context(), notice); err != nil {
		t.Fatal(err)
	}
	if got.ID != "20260101T000000Z" || len(got.Failed) != 1 || got.Failed[0] != "a@main" || !strings.HasSuffix(got.Report, "/state/report.json") || !strings.Contains(got.Text, "1 of 2 wheels failed") {
		t.Errorf("%+v", got)
	}
	for _, answer = range []int{http.StatusFound, http.StatusInternalServerError} {
		if err := n.Send(t.Context(), notice); err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "the server answered") {
			t.Errorf("%d: %v", answer, err)
		}
	}
	server.Close()
	if err := n.Send(t.Context(), notice); err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("%v", err)
	}
}

// A command gets it on standard input, and not among its arguments.
func TestNotifyCommand(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	n := nightly.Notify{Command: []string{"/bin/sh", "-c", `{ cat; echo "report=$DSBUILD_REPORT args=$#"; } >"$0"`, out}}
	if err := n.Send(t.Context(), nightly.NewNotice(failedNight(), "ci", errors.New("it broke"))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(text), "failed: it broke\n") || !strings.Contains(string(text), "/state/report.json args=0") {
		t.Errorf("%s %v", text, err)
	}
	n.Command = []string{"/bin/sh", "-c", "echo s3cret >&2; exit 3"}
	if err := n.Send(t.Context(), nightly.NewNotice(nil, "ci", errors.New("it broke"))); err == nil || err.Error() != "command sh: exit status 3" {
		t.Errorf("%v", err)
	}
	n.Command = []string{filepath.Join(t.TempDir(), "missing")}
	if err := n.Send(t.Context(), nightly.NewNotice(nil, "ci", errors.New("it broke"))); err == nil {
		t.Error("a command that does not exist")
	}
}

// What is wrong with notify is said before the night, without the URL.
func TestNotifyRead(t *testing.T) {
	t.Setenv("NIGHTLY_HOOK", "https://hooks.example.org/s3cret")
	c, _, err := read(t, "wheels: wheels.yaml\nnotify: {url: $NIGHTLY_HOOK}\n")
	if err != nil || c.Notify.URL != "https://hooks.example.org/s3cret" {
		t.Errorf("%+v %v", c.Notify, err)
	}
	c, dir, err := read(t, "wheels: wheels.yaml\nnotify: {command: [./tell.sh, admin]}\n")
	if err != nil || len(c.Notify.Command) != 2 || c.Notify.Command[0] != filepath.Join(dir, "tell.sh") {
		t.Errorf("%+v %v", c.Notify, err)
	}
	for text, want := range map[string]string{
		"{}": "either a url or a command", "{url: 'ftp://x/s3cret'}": "not an http or https address", "{url: $NIGHTLY_NONE}": "the environment has no such variable",
		"{url: 'https://x/', command: mail}": "either a url or a command", "{command: mail admin}": "does not run it in a shell", "{mail: x}": "unknown key", "{command: []}": "command",
	} {
		if _, _, err := read(t, "wheels: wheels.yaml\nnotify: "+text+"\n"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
