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

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// check returns the error of an invalid or cancelled upload before anything is sent.
func (u Upload) check(ctx context.Context) error {
	if !path.IsAbs(u.Path) || strings.ContainsRune(u.Path, 0) {
		return fmt.Errorf("%q is not an absolute path", u.Path)
	}
	return ctx.Err()
}

// rest opens the local file at a byte. It yields one byte more than announced, to detect a file that
// has grown.
func (u Upload) rest(ctx context.Context, at int64) (*meter, error) {
	local, err := u.Open()
	if err != nil {
		return nil, err
	}
	if _, err := local.Seek(at, io.SeekStart); err != nil {
		local.Close()
		return nil, fmt.Errorf("reading the local file: %w", err)
	}
	return &meter{ctx: ctx, r: io.LimitReader(local, u.Size-at+1), Closer: local, limit: u.Limit, told: u.Progress}, nil
}

// meter counts the bytes read from a local file, slows the reading down to limit, and ends it with
// ctx.
type meter struct {
	io.Closer
	ctx   context.Context
	r     io.Reader
	limit *rate.Limiter
	told  func(int64)
	n     int64
	err   error // of the reading
}

// Read implements io.Reader. It reads at most a packet, the most that a rate limit can count at once.
func (m *meter) Read(b []byte) (n int, err error) {
	if err = m.ctx.Err(); err == nil {
		n, err = m.r.Read(b[:min(len(b), LimitBurst)])
	}
	if n > 0 && m.limit != nil {
		if held := m.limit.WaitN(m.ctx, n); held != nil {
			n, err = 0, held
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		m.err = err
	}
	m.n += int64(n)
	if n > 0 && m.told != nil {
		m.told(int64(n))
	}
	return n, err
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

// Errors of uploads, the same for every kind of connection.

// noSpace returns the error of a node with too little free space.
func (u Upload) noSpace(free int64) error {
	err := nodeerr.Errorf("%w: %s needs %s, but only %s is free",
		ErrNoSpace, path.Dir(u.Path), ui.Size(u.Size), nodeerr.Own(ui.Size(free)))
	return fault.WithHint(err, "free disk space on the node: df -h %s; du -xsh %s/*",
		Quote(path.Dir(u.Path)), Quote(path.Dir(u.Path)))
}

// noFolder returns the error of a missing directory on the node.
func (u Upload) noFolder(doing string) error {
	return fault.WithHint(fmt.Errorf("%s: no such directory on the node", doing),
		"create it on the node: mkdir -p %s", Quote(path.Dir(u.Path)))
}

// forbidden returns the error of a directory that is not writable by user.
func (u Upload) forbidden(doing, user string) error {
	return fault.WithHint(fmt.Errorf("%s: permission denied for %s", doing, user),
		"check the owner on the node: ls -ld %s", Quote(path.Dir(u.Path)))
}

// changed returns the error of a local file that does not match Size and SHA256. n is the number of
// bytes read.
func (u Upload) changed(n int64) error {
	err := fmt.Errorf("local file for %s changed during the run, or its digest was wrong (%d bytes read, %d expected)",
		path.Base(u.Path), n, u.Size)
	return fault.WithHint(err, "rerun the command; check a wheel with dsbuild verify-wheel FILE")
}

// corrupted returns the error of a file that arrived at part with another sha256.
func (u Upload) corrupted(part, sum string) error {
	return fault.WithHint(fmt.Errorf("%s has sha256 %q on the node, expected %s", part, sum, u.SHA256),
		"check the node's disk and the network for data corruption")
}

// failed returns the error of another failure on the node.
func (u Upload) failed(doing string, why error) error {
	return fault.WithHint(fmt.Errorf("%s: %w", doing, why),
		"check quota, permissions and read-only file systems on the node: touch %s",
		Quote(path.Join(path.Dir(u.Path), ".dsbuild-test")))
}
