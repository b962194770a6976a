package node

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// maxWords is how much of a node's error is repeated.
const maxWords = 1 << 10

// NodeError is an error in the words of a node. They are on one line, and marked as the
// node's: a reader must not take them for dsbuild's own.
type NodeError struct{ words string }

// NewNodeError makes an error of a node's message.
func NewNodeError(words string) *NodeError {
	return &NodeError{ui.Shorten(ui.OneLine(words), maxWords)}
}

func (e *NodeError) Error() string { return nodeerr.Reported + e.words }

// hereError is an error of a program that ran on this machine as it does on a node.
type hereError struct{ error }

func (e *hereError) Error() string {
	return strings.ReplaceAll(e.error.Error(), nodeerr.Reported, "")
}
func (e *hereError) Unwrap() error { return e.error }

// WithoutNodePrefix returns an error without the words about a node: there is none.
func WithoutNodePrefix(err error) error {
	if err == nil {
		return nil
	}
	return &hereError{err}
}

// plainPath is a path that needs no quotes in a command, for an environment or a program.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9_@%+:,./~-]+$`)

// quotedPath is an absolute path that is one word in the single quotes of every shell.
var quotedPath = regexp.MustCompile(`^/[\pL\pM\pN_@%+=:,./~ ()#-]+$`)

// PlainPath is a path for a hint that the user may copy into a shell, in quotes if it needs them. otherwise replaces a
// path with signs that mean something in the quotes of some shell.
func PlainPath(path, otherwise string) string {
	switch {
	case plainPath.MatchString(path):
		return path
	case quotedPath.MatchString(path):
		return remote.Quote(path)
	}
	return otherwise
}

// QuotePath is a path, or another name of a node's, for a sentence: in quotes where it could be
// read as more of the sentence.
func QuotePath(path string) string {
	const most = 300
	if plainPath.MatchString(path) && len(path) <= most {
		return path
	}
	return strconv.Quote(ui.Shorten(ui.OneLine(path), most))
}

// PlainVersion returns a version, or a digest, without characters that cannot be part of one:
// versions appear in verdicts and hints.
func PlainVersion(version string) string {
	const most = 100
	version = strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("._+!-", r) {
			return r
		}
		return -1
	}, version)
	return version[:min(len(version), most)]
}
