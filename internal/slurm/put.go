package slurm

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

//go:embed receive.sh
var receive string

// What receive.sh can end with, beside 0.
const (
	receiveNoFolder  = 81
	receiveNoSource  = 82
	receiveFailed    = 83 // says why
	receiveNoSpace   = 84 // says how much there is
	receiveForbidden = 85
	receiveSize      = 86 // says what it is
	receiveDigest    = 87 // says what it is
)

// errNoSource is a file that was brought to a node and is not there.
var errNoSource = errors.New("it is not there any more")

// Put implements remote.Conn. A file that was announced for several nodes is brought
// to all of them at once; else it goes through srun's input. Upload.Sum is not asked:
// the program that brings the file to its place tells the digest. There is nothing to
// resume where a whole file is on the node at once.
func (c *conn) Put(ctx context.Context, up remote.Upload) error {
	if err := up.Check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.ended.Err() != nil {
		return errClosed
	}
	a, done, err := c.dialer.lease(ctx, c.node, false)
	if err != nil {
		return err
	}
	defer done()
	source, err := c.dialer.brought(ctx, a, c.node, up)
	if err != nil {
		return err
	}
	if source != "" {
		err := c.receive(ctx, up, source, nil)
		if !errors.Is(err, errNoSource) {
			if err == nil && up.Progress != nil {
				up.Progress(up.Size)
			}
			return err
		}
	}
	return c.send(ctx, up)
}

// send brings a file to the node through srun's input.
func (c *conn) send(ctx context.Context, up remote.Upload) error {
	local, err := up.Open()
	if err != nil {
		return err
	}
	defer local.Close()
	m := &meter{r: local, told: up.Progress}
	err = c.receive(ctx, up, "-", m)
	if failed := m.failed(); failed != nil && ctx.Err() == nil {
		return fmt.Errorf("reading the local file: %w", failed)
	}
	return err
}

// putRest is how long a cancelled upload may take to come to rest.
const putRest = 5 * time.Second

// receive brings a file to its place: from a file on the node, or from stdin.
func (c *conn) receive(ctx context.Context, up remote.Upload, source string, stdin io.Reader) error {
	part := path.Join(path.Dir(up.Path), ".dsbuild-"+rand.Text()[:16]+remote.PartSuffix)
	line, err := remote.CommandLine(remote.Command{Argv: []string{
		"sh", "-c", receive, "sh", source, part, up.Path,
		strconv.FormatUint(uint64(up.Mode.Perm()), 8), strconv.FormatInt(up.Size, 10), up.SHA256,
	}})
	if err != nil {
		return err
	}
	var said, errs bytes.Buffer
	gone, err := c.run(ctx, line, streams{stdin, &said, &errs})
	if gone != nil && !closed(gone) {
		select {
		case <-gone:
		case <-time.After(putRest):
			err = fmt.Errorf("%w (%s may be left there)", err, part)
		}
	}
	var exit *remote.ExitError
	if err == nil || !errors.As(err, &exit) {
		return err
	}
	return c.wrong(up, part, exit, strings.TrimSpace(ui.Clean(said.String())), strings.TrimSpace(ui.Clean(errs.String())))
}

// wrong is the error of receive.sh.
func (c *conn) wrong(up remote.Upload, part string, exit *remote.ExitError, said, errs string) error {
	n, _ := strconv.ParseInt(said, 10, 64) //nolint:errcheck // a text then
	creating := "creating a file in " + path.Dir(up.Path)
	switch exit.Code {
	case receiveNoSource:
		return errNoSource
	case receiveNoFolder:
		return up.NoFolder(creating)
	case receiveForbidden:
		return up.Forbidden(creating, "the user who submits")
	case receiveNoSpace:
		return up.NoSpace(n)
	case receiveSize, receiveDigest:
		return unlike(up, part, exit.Code, said)
	case receiveFailed:
		return hint.With(fmt.Errorf("bringing a file to %s: %s", up.Path, said),
			"a quota, a read-only file system or a missing right: on the node try: touch %s", remote.Quote(path.Join(path.Dir(up.Path), ".dsbuild-test")))
	}
	return fmt.Errorf("bringing a file to %s: %w: %s", up.Path, exit, errs)
}

// unlike is the error of a file that did not arrive as it was announced.
func unlike(up remote.Upload, part string, code int, said string) error {
	local, err := up.Open()
	if err != nil {
		return err
	}
	defer local.Close()
	h := sha256.New()
	n, err := io.Copy(h, local)
	switch {
	case err != nil:
		return fmt.Errorf("reading the local file: %w", err)
	case n != up.Size || hex.EncodeToString(h.Sum(nil)) != up.SHA256:
		return up.Changed(n)
	case code == receiveSize:
		return fmt.Errorf("%s has %s bytes at the far end, %d were sent", part, said, up.Size)
	}
	return up.Corrupted(part, said)
}

// meter counts the bytes of a local file as they are read.
type meter struct {
	r    io.Reader
	told func(int64)
	mu   sync.Mutex
	err  error
}

// Read implements io.Reader.
func (m *meter) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	if n > 0 && m.told != nil {
		m.told(int64(n))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.err = err
	}
	return n, err
}

// failed is why the file could not be read to its end, if so.
func (m *meter) failed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}
