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

// here runs commands on this machine, as a node with a greeting would.
type here struct{ alter func([]byte) []byte }

func (h here) Run(ctx context.Context, cmd remote.Command) error {
	c := exec.CommandContext(ctx, cmd.Argv[0], cmd.Argv[1:]...)
	c.Stdin, c.Stdout, c.Stderr = cmd.Stdin, cmd.Stdout, cmd.Stderr
	if h.alter != nil && cmd.Stdin != nil {
		b, err := io.ReadAll(cmd.Stdin)
		if err != nil {
			return err
		}
		c.Stdin = bytes.NewReader(h.alter(b))
	}
	if cmd.Stdin != nil {
		io.WriteString(cmd.Stdout, "welcome to gpu1\n") //nolint:errcheck // of a test
	}
	var ended *exec.ExitError
	if err := c.Run(); errors.As(err, &ended) {
		return &remote.ExitError{Code: ended.ExitCode()}
	} else if err != nil {
		return err
	}
	return nil
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

// A file arrives whole, with its mode, in place of an older one, and whatever lies in place of the part.
func TestPutByProgram(t *testing.T) {
	t.Parallel()
	const text = "the file's text\n\x00\xff"
	for name, make := range map[string]func(to string) error{
		"new":                  func(string) error { return nil },
		"in place of another":  func(to string) error { return os.WriteFile(to, []byte("old"), 0o600) },
		"the half":             func(to string) error { return os.WriteFile(to+remote.PartSuffix, []byte(text[:7]), 0o640) },
		"another part":         func(to string) error { return os.WriteFile(to+remote.PartSuffix, []byte("other"), 0o640) },
		"a longer part":        func(to string) error { return os.WriteFile(to+remote.PartSuffix, []byte(text+text), 0o640) },
		"a link as part":       func(to string) error { return os.Symlink("/etc/passwd", to+remote.PartSuffix) },
		"a folder as the part": func(to string) error { return os.MkdirAll(to+remote.PartSuffix+"/x", 0o755) },
	} {
		dir := filepath.Join(t.TempDir(), "a folder's 'name'")
		to := filepath.Join(dir, "-file")
		if err := errors.Join(os.Mkdir(dir, 0o755), make(to)); err != nil {
			t.Fatal(err)
		}
		if err := remote.PutByProgram(t.Context(), here{}, "root", uploadOf(text, to)); err != nil {
			t.Errorf("%s: %v", name, err)
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

// A file that does not arrive leaves the old one, and its error says why and what to try.
func TestPutByProgramRefuses(t *testing.T) {
	t.Parallel()
	const text = "the file's text"
	upper := func(b []byte) []byte { return bytes.ToUpper(b) }
	for name, c := range map[string]struct {
		change     func(dir string, up *remote.Upload)
		alter      func([]byte) []byte
		text, hint string
		is         error
	}{
		"too short": {nil, func(b []byte) []byte { return b[:5] }, "has 5 bytes on the node, expected 15", "", nil},
		"too long":  {nil, func(b []byte) []byte { return append(b, "more"...) }, "has 19 bytes on the node, expected 15", "", nil},
		"altered":   {nil, upper, "on the node, expected ", "data corruption", nil},
		"no folder": {func(dir string, up *remote.Upload) { up.Path = dir + "/none/file" }, nil, "no such directory on the node", "mkdir -p ", nil},
		"a folder":  {func(dir string, up *remote.Upload) { up.Path = dir }, nil, "is a directory", "touch ", nil},
		"no room":   {func(_ string, up *remote.Upload) { up.Size = 1 << 62 }, nil, "but only ", "df -h ", remote.ErrNoSpace},
		"changed here": {
			func(_ string, up *remote.Upload) { up.Open = uploadOf("another text.  ", "/x").Open }, nil,
			"local file for file changed during the run", "verify-wheel", nil,
		},
		"grown here": {
			func(_ string, up *remote.Upload) { up.Open = uploadOf(text+"more", "/x").Open }, nil,
			"local file for file changed during the run, or its digest was wrong (16 bytes read, 15 expected)", "verify-wheel", nil,
		},
		"relative": {func(_ string, up *remote.Upload) { up.Path = "file" }, nil, "not an absolute path", "", nil},
		"a zero":   {func(_ string, up *remote.Upload) { up.Path += "\x00" }, nil, "not an absolute path", "", nil},
	} {
		dir := filepath.Join(t.TempDir(), "folder")
		to := filepath.Join(dir, "file")
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(to, []byte("old"), 0o600)); err != nil {
			t.Fatal(err)
		}
		up := uploadOf(text, to)
		if c.change != nil {
			c.change(dir, &up)
		}
		err := remote.PutByProgram(t.Context(), here{c.alter}, "root", up)
		if err == nil || !strings.Contains(err.Error(), c.text) || !strings.Contains(fault.Hint(err), c.hint) || c.is != nil && !errors.Is(err, c.is) || strings.Contains(err.Error(), "welcome") {
			t.Errorf("%s: %v, hint %q", name, err, fault.Hint(err))
		}
		if got, _ := os.ReadFile(to); string(got) != "old" { //nolint:errcheck // compared
			t.Errorf("%s: the old file is %q", name, got)
		}
	}
}

// answering answers each program with a fixed status and text.
type answering struct {
	code       int
	said, errs string
}

func (a answering) Run(_ context.Context, cmd remote.Command) error {
	if cmd.Stdin == nil {
		return nil
	}
	io.WriteString(cmd.Stdout, a.said) //nolint:errcheck // of a test
	io.WriteString(cmd.Stderr, a.errs) //nolint:errcheck // likewise
	return &remote.ExitError{Code: a.code}
}

// An answer of a node that no such program gives is an error with the node's words, not a crash.
func TestPutByProgramExplainsForeignAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer answering
		want   string
	}{
		"killed":         {answering{137, "", "Killed"}, "sending a file to /data/file: "},
		"another status": {answering{1, "x", "no such shell"}, ": no such shell"},
		"no number":      {answering{84, "many", ""}, "/data needs 4 B, but only 0 B is free"},
		"forbidden":      {answering{85, "", ""}, "creating a file in /data: permission denied for train"},
		"without words":  {answering{83, "", ""}, "sending a file to /data/file: "},
		"its size":       {answering{86, "banner\n7", ""}, "has 7 bytes on the node, expected 4"},
	} {
		err := remote.PutByProgram(t.Context(), c.answer, "train", uploadOf("text", "/data/file"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}
