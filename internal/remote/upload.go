package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Check returns the error of an invalid upload before anything is sent.
func (u Upload) Check() error {
	if !path.IsAbs(u.Path) || strings.ContainsRune(u.Path, 0) {
		return fmt.Errorf("%q is not an absolute path", u.Path)
	}
	return nil
}

// localSum returns the sha256 of the first n bytes of the local file, and the number of bytes read,
// which is less if the file is shorter.
func (u Upload) localSum(ctx context.Context, n int64) (sum string, there int64, err error) {
	local, err := u.Open()
	if err != nil {
		return "", 0, err
	}
	defer local.Close()
	h := sha256.New()
	there, err = io.CopyN(h, &meter{ctx: ctx, r: local}, n)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", 0, fmt.Errorf("reading the local file: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), there, nil
}

// Errors of uploads. They read the same for every kind of connection.

// NoSpace returns the error of a node with too little free space.
func (u Upload) NoSpace(free int64) error {
	err := cause.Errorf("%w: %s needs %s, but only %s are free", ErrNoSpace, path.Dir(u.Path), ui.Size(u.Size), cause.Own(ui.Size(free)))
	return fault.WithHint(err, "make room there (on the node: df -h %s; du -xsh %s/*)", Quote(path.Dir(u.Path)), Quote(path.Dir(u.Path)))
}

// NoFolder returns the error of a node that lacks the folder.
func (u Upload) NoFolder(doing string) error {
	return fault.WithHint(fmt.Errorf("%s: no such folder on the node", doing), "create it there: mkdir -p %s", Quote(path.Dir(u.Path)))
}

// Forbidden returns the error of a folder that the user may not write to.
func (u Upload) Forbidden(doing, user string) error {
	return fault.WithHint(fmt.Errorf("%s: %s cannot write there", doing, user), "check its owner on the node: ls -ld %s", Quote(path.Dir(u.Path)))
}

// Changed returns the error of a local file that does not match Size and SHA256. n is the number of
// bytes read.
func (u Upload) Changed(n int64) error {
	return fault.WithHint(fmt.Errorf("the local file for %s is not the expected one: it changed during the run, or its digest was wrong (%d bytes read, %d expected)", path.Base(u.Path), n, u.Size),
		"run the same command again; 'dsbuild verify-wheel FILE' checks a wheel")
}

// Corrupted returns the error of a file that arrived at part with another sha256.
func (u Upload) Corrupted(part, sum string) error {
	return fault.WithHint(fmt.Errorf("%s has sha256 %s on the node, but dsbuild sent %s", part, sum, u.SHA256),
		"the node's disk or the network corrupts data")
}
