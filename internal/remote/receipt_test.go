package remote_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// uploadOf is an upload of a text to a path.
func uploadOf(text, to string) remote.Upload {
	sum := sha256.Sum256([]byte(text))
	return remote.Upload{
		Path: to, Mode: 0o640, Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:]),
		Open: func() (io.ReadSeekCloser, error) { return readSeekCloser{strings.NewReader(text)}, nil },
	}
}

type readSeekCloser struct{ *strings.Reader }

func (readSeekCloser) Close() error { return nil }

// receiveHere runs the program of a receipt on this machine, as a node would, and returns its error.
func receiveHere(t *testing.T, r remote.Receipt, source string, stdin io.Reader) error {
	t.Helper()
	argv := r.Command(source).Argv
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	err := cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return r.Explain(t.Context(), &remote.ExitError{Code: ended.ExitCode()}, ui.Clean("welcome to gpu1\n"+out.String()), ui.Clean(errs.String()))
	}
	return err
}

// left are the names in a folder.
func left(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// A file arrives whole, with its mode, in place of an older one; from a file on the node or from
// standard input.
func TestReceiptPutsFile(t *testing.T) {
	t.Parallel()
	const text = "the file's text\n\x00\xff"
	for name, there := range map[string]bool{"new": false, "in place of another": true} {
		dir := filepath.Join(t.TempDir(), "a folder's 'name'")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		to, source := filepath.Join(dir, "-file"), filepath.Join(t.TempDir(), "source")
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, from := range []string{"-", source} {
			if there {
				if err := os.WriteFile(to, []byte("old"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r := remote.NewReceipt(uploadOf(text, to), "root")
			if err := receiveHere(t, r, from, strings.NewReader(text)); err != nil {
				t.Errorf("%s from %s: %v", name, from, err)
			}
			got, err := os.ReadFile(to)
			if err != nil || string(got) != text || left(t, dir) != "-file" {
				t.Errorf("%s: %q, %v; %s", name, got, err, left(t, dir))
			}
			if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o640 {
				t.Errorf("%s: %v, %v", name, info.Mode(), err)
			}
		}
	}
}

// A file that does not arrive leaves the old one and nothing else, and its error says why and what
// to try.
func TestReceiptRefuses(t *testing.T) {
	t.Parallel()
	const text = "the file's text"
	for name, c := range map[string]struct {
		change     func(dir string, r *remote.Receipt)
		from, sent string
		text, hint string
		is         error
	}{
		"too short": {nil, "-", text[:5], "has 5 bytes at the far end, 15 were sent", "", nil},
		"too long":  {nil, "-", text + "more", "has 19 bytes at the far end, 15 were sent", "", nil},
		"altered":   {nil, "-", strings.ToUpper(text), "on the node, but dsbuild sent ", "corrupts data", nil},
		"no folder": {func(dir string, r *remote.Receipt) { r.Path, r.Part = dir+"/none/file", dir+"/none/part" }, "-", text, "no such folder on the node", "mkdir -p ", nil},
		"a folder":  {func(dir string, r *remote.Receipt) { r.Path = dir }, "-", text, "is a folder", "touch ", nil},
		"no source": {nil, "/nowhere/source", "", "it no longer exists", "", remote.ErrNoSource},
		"no room":   {func(_ string, r *remote.Receipt) { r.Size = 1 << 62 }, "-", text, "but only ", "df -h ", remote.ErrNoSpace},
		"changed here": {func(_ string, r *remote.Receipt) {
			r.Open = uploadOf("another text.  ", "/x").Open
		}, "-", "another text.  ", "the local file for file is not the expected one: it changed", "verify-wheel", nil},
		"grown here": {func(_ string, r *remote.Receipt) {
			r.Open = uploadOf(text+"more", "/x").Open
		}, "-", text + "more", "the local file for file is not the expected one: it changed during the run, or its digest was wrong (16 bytes read, 15 expected)", "verify-wheel", nil},
		"part is taken": {func(dir string, r *remote.Receipt) { r.Part = dir + "/file" }, "-", text, "bringing a file to ", "touch ", nil},
	} {
		dir := t.TempDir()
		to := filepath.Join(dir, "file")
		if err := os.WriteFile(to, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		r := remote.NewReceipt(uploadOf(text, to), "train")
		if c.change != nil {
			c.change(dir, &r)
		}
		err := receiveHere(t, r, c.from, strings.NewReader(c.sent))
		if err == nil || !strings.Contains(err.Error(), c.text) || !strings.Contains(fault.Hint(err), c.hint) || c.is != nil && !errors.Is(err, c.is) || strings.Contains(err.Error(), "welcome") {
			t.Errorf("%s: %v, hint %q", name, err, fault.Hint(err))
		}
		if got, _ := os.ReadFile(to); string(got) != "old" || left(t, dir) != "file" { //nolint:errcheck // compared
			t.Errorf("%s: the old file is %q, and there are %s", name, got, left(t, dir))
		}
	}
}

// An answer of a node that no such program gives is an error with the node's words, not a crash.
func TestReceiptExplainsForeignAnswers(t *testing.T) {
	t.Parallel()
	r := remote.NewReceipt(uploadOf("text", "/data/file"), "train")
	for name, c := range map[string]struct {
		code       int
		said, errs string
		want       string
	}{
		"killed":         {137, "", "Killed", "bringing a file to /data/file: "},
		"another status": {1, "x", "no such shell", ": no such shell"},
		"no number":      {84, "many", "", "/data needs 4 B, but only 0 B are free"},
		"forbidden":      {85, "", "", "creating a file in /data: train cannot write there"},
		"without words":  {83, "", "", "bringing a file to /data/file: "},
		"its size":       {86, "banner\n7", "", "has 7 bytes at the far end, 4 were sent"},
	} {
		err := r.Explain(context.Background(), &remote.ExitError{Code: c.code}, c.said, c.errs)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if err := uploadOf("x", "relative").Check(); err == nil {
		t.Error("a relative path is taken")
	}
	if err := uploadOf("x", "/a\x00b").Check(); err == nil {
		t.Error("a path with a zero byte is taken")
	}
	if err := uploadOf("x", "/a").Check(); err != nil {
		t.Error(err)
	}
}
