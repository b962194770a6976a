package signing

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/wheel"
)

// Previous is the DeepSpeed version that a rollback would restore, as reported by the node.
type Previous struct {
	SHA256 string  `json:"sha256"` // of its wheel, as recorded by the node
	Signed *Signed `json:"-"`      // what the node has kept of that wheel, if anything
	// Places are the folders of the schemes of a wheel: "" for site-packages, "scripts", "data".
	Places map[string]string `json:"places"`
	// Files are the files that Python could run after the rollback, by path, except byte code in __pycache__,
	// which the node compares with the modules. Each has its SHA-256 in RECORD's syntax. A command whose first
	// line an installer rewrote also has the SHA-256 of the wheel's original. A link has none.
	Files map[string][]string `json:"files"`
}

// Hints for rejected rollbacks.
const (
	unsignedHint = "deploy a signed wheel of that version instead"
	changedHint  = "deploy the version you want: the files kept on the node have changed"
)

// CheckPrevious checks a node's previous version against the policy: its wheel as Check does, and each of its
// files against the signed RECORD. A nil policy accepts every version.
func (p *Policy) CheckPrevious(k Previous, now time.Time) error {
	switch {
	case p == nil || len(k.Files) == 0: // without files the rollback only removes a version
		return nil
	case k.Signed == nil || k.Signed.Statement == "":
		return refused(unsignedHint, "previous version is unsigned, or its signatures are missing")
	}
	_, facts, err := p.check(*k.Signed, k.SHA256, now)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256([]byte(k.Signed.Record)); facts.Record != hex.EncodeToString(sum[:]) {
		return refused(changedHint, "file list does not match the signed one")
	}
	entries, err := wheel.ParseRecord(strings.NewReader(k.Signed.Record))
	if err != nil {
		return refused(changedHint, "%v", err)
	}
	signed := map[string]bool{}
	for _, e := range entries {
		scheme, below := wheel.Place(e.Path)
		place, known := k.Places[scheme]
		if !known || e.Algorithm == "" { // a header, which installers rename, or RECORD itself
			continue
		}
		file := path.Join(place, below)
		if signed[file] = true; e.Algorithm != "sha256" || !slices.Contains(k.Files[file], strings.TrimRight(e.Digest, "=")) {
			return refused(changedHint, "%s differs from the signed file", e.Path)
		}
	}
	for file, digests := range k.Files {
		if !signed[file] && (k.couldRun(file) || len(digests) == 0) {
			return refused(changedHint, "%q is not in a signed wheel", file)
		}
	}
	return nil
}

// couldRun reports whether a Python could run a file, or a user could as a command.
func (k Previous) couldRun(file string) bool {
	folder, name := path.Split(file)
	return slices.Contains([]string{".py", ".pyc", ".so", ".pth", ".start"}, path.Ext(name)) ||
		name == "entry_points.txt" || path.Clean(folder) == k.Places["scripts"]
}
