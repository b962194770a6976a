package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pkg/sftp"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

// abortGrace limits the time for a cancelled upload to stop and for an SFTP session to end. After
// that the whole connection is closed.
const abortGrace = 3 * time.Second

// packet is the packet size of an upload that every server accepts. Larger packets have corrupted
// files elsewhere.
const packet = 32 << 10

// widePacket is the packet size for servers with limits@openssh.com. OpenSSH's servers accept it,
// and OpenSSH's own client uses it: both sides need a quarter less CPU time.
const widePacket = 255 << 10

// inFlight limits the unconfirmed bytes of an upload, and fewInFlight those of a file up to smallFile.
// They stay in memory until the node confirms them, for many nodes at the same time. If a connection
// breaks, the last inFlight bytes of the remote part may have holes.
const (
	inFlight    = 64 * packet
	fewInFlight = 24 * packet
	smallFile   = 8 << 20
)

// Put implements Conn.
func (c *sshConn) Put(ctx context.Context, up Upload) error {
	if err := up.check(ctx); err != nil {
		return err
	}
	told := new(atomic.Int64)
	bySFTP := up
	bySFTP.Progress = func(n int64) {
		told.Add(n)
		if up.Progress != nil {
			up.Progress(n)
		}
	}
	p := &put{conn: c, up: bySFTP, part: up.Path + PartSuffix}
	err := p.guarded(ctx)
	denied := new(sftpDenial)
	switch {
	case errors.Is(err, errNoSFTP):
		return PutByProgram(ctx, c, c.target.User, up)
	case errors.As(err, &denied):
		bySFTP.Progress(-told.Load()) // the program reports all bytes
		return c.putAnyway(ctx, up, denied)
	}
	if !errors.Is(err, errNoSession) {
		return err
	}
	next, err := c.further(ctx, err)
	if err != nil {
		return err
	}
	return next.Put(ctx, up)
}

// sftpDenial is the error of an SFTP server that denies a request. It may be read-only (-R) or deny single requests
// (-P), but a program on the node is not restricted.
type sftpDenial struct{ error }

// Unwrap returns the error without the mark.
func (r *sftpDenial) Unwrap() error { return r.error }

// putAnyway uploads a file by a program on the node, after the SFTP server has denied it.
func (c *sshConn) putAnyway(ctx context.Context, up Upload, denied *sftpDenial) error {
	err := PutByProgram(ctx, c, c.target.User, up)
	switch {
	case err == nil:
		c.noSFTP.Store(true) // it would deny the next file, too
		return nil
	case ctx.Err() != nil, errors.Is(err, ErrLost), errors.Is(err, ErrNoSpace), err.Error() == denied.Error():
		return err
	}
	return fault.AddHint(nodeerr.Errorf("%w; by SFTP: %w", err, denied.error), fault.Hint(err))
}

// put is one upload under way.
type put struct {
	conn   *sshConn
	up     Upload
	part   string
	client *sftp.Client
	at     int64 // verified bytes of an earlier attempt

	writing bool // bytes are being sent
	arrived bool // all bytes have been written
}

// guarded runs the upload and ends it when ctx ends. pkg/sftp does not support contexts, so guarded
// closes its client, and if that hangs, the connection. It returns only after the upload has stopped.
func (p *put) guarded(ctx context.Context) error {
	window := inFlight
	if p.up.Size <= smallFile {
		window = fewInFlight
	}
	client, err := p.conn.sftp(ctx, window)
	if err != nil {
		return err
	}
	p.client = client
	defer p.conn.endSFTP(client)
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		go client.Close()
		select {
		case <-done:
		case <-time.After(abortGrace):
			p.conn.abort("a cancelled upload did not end")
			<-done
		}
	}
	return cmp.Or(ctx.Err(), err)
}

// run does the steps of the upload in order. Each request to the node costs a round trip.
func (p *put) run(ctx context.Context) error {
	f, err := p.open(ctx)
	if err != nil {
		return err
	}
	if free, known := p.freeBytes(); known && free < p.up.Size-p.at {
		f.Close()
		err = p.up.noSpace(free)
	}
	if err == nil {
		err = p.write(ctx, f)
	}
	if err == nil {
		err = p.verify(ctx)
	}
	if err == nil {
		err = p.rename()
	}
	goesOn := p.arrived && errors.As(err, new(*sftpDenial)) // by a program, with these bytes
	if err != nil && !errors.Is(err, ErrLost) && !goesOn && ctx.Err() == nil {
		p.client.Remove(p.part) //nolint:errcheck // a retry does not trust it
	}
	return err
}

// open opens the remote file at the byte where the transfer begins.
func (p *put) open(ctx context.Context) (*sftp.File, error) {
	f, refused := p.create()
	if refused == nil {
		return f, nil
	}
	st, err := p.client.Lstat(p.part)
	if err != nil { // SFTP has no code for "exists already", so Lstat shows that this was another error
		return nil, refused
	}
	if err := p.resume(ctx, st); err != nil {
		return nil, err
	}
	if p.at == 0 {
		return p.create()
	}
	f, err = p.client.OpenFile(p.part, os.O_WRONLY)
	if err == nil {
		_, err = f.Seek(p.at, io.SeekStart)
	}
	if err != nil {
		return nil, p.explain(fmt.Sprintf("opening %s at byte %d", p.part, p.at), err)
	}
	return f, nil
}

// create makes the remote file. It sets the mode while the file is empty, so that other users cannot
// read the contents.
func (p *put) create() (*sftp.File, error) {
	f, err := p.client.OpenFile(p.part, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, p.explain("creating a file in "+path.Dir(p.part), err)
	}
	if err := f.Chmod(p.up.Mode.Perm()); err != nil {
		f.Close()
		return nil, p.explain("setting the mode of "+p.part, err)
	}
	return f, nil
}

// resume finds the longest prefix that an earlier attempt transferred intact. It truncates the rest, or removes
// the file if no prefix matches.
func (p *put) resume(ctx context.Context, st fs.FileInfo) error {
	there := min(st.Size(), p.up.Size)
	for _, n := range []int64{there, there - inFlight} {
		if n <= 0 || !st.Mode().IsRegular() {
			break
		}
		here, _, err := p.up.localSum(ctx, n)
		if err != nil {
			return err
		}
		sum, err := p.remoteSum(ctx, n)
		if err != nil {
			return err
		}
		if here != sum {
			continue
		}
		p.at = n
		if p.up.Progress != nil {
			p.up.Progress(n)
		}
		if err := p.client.Truncate(p.part, n); err != nil {
			return p.explain("truncating "+p.part, err)
		}
		return nil
	}
	if err := p.client.Remove(p.part); err != nil {
		return p.explain("removing "+p.part, err)
	}
	return nil
}

// write sends the rest of the file.
func (p *put) write(ctx context.Context, f *sftp.File) error {
	defer f.Close()
	m, err := p.up.rest(ctx, p.at)
	if err != nil {
		return err
	}
	defer m.Close()
	p.writing = true
	// ReadFrom would send one packet at a time, because m hides its length.
	_, err = f.ReadFromWithConcurrency(m, 0)
	switch {
	case m.err != nil:
		return fmt.Errorf("reading the local file: %w", m.err)
	case err != nil:
		return p.explain("writing "+p.part, err)
	case p.at+m.n != p.up.Size:
		return p.up.changed(p.at + m.n)
	}
	if err := f.Close(); err != nil {
		return p.explain("closing "+p.part, err)
	}
	p.writing, p.arrived = false, true
	return nil
}

// verify compares the remote file's length and sha256 with the upload's. Some servers do not truncate
// a file.
func (p *put) verify(ctx context.Context) error {
	st, err := p.client.Stat(p.part)
	if err != nil {
		return p.explain("checking "+p.part, err)
	}
	if st.Size() != p.up.Size {
		return fmt.Errorf("%s has %d bytes on the node, expected %d", p.part, st.Size(), p.up.Size)
	}
	there, err := p.remoteSum(ctx, p.up.Size)
	switch {
	case err != nil && !errors.Is(err, ErrLost) && ctx.Err() == nil:
		p.arrived = false // an SFTP server may show other folders than a command sees
		return &sftpDenial{err}
	case err != nil || there == p.up.SHA256:
		return err
	}
	here, _, err := p.up.localSum(ctx, p.up.Size)
	switch {
	case err != nil:
		return err
	case here != p.up.SHA256:
		return p.up.changed(p.up.Size)
	}
	return p.up.corrupted(p.part, there)
}

// remoteSum returns the sha256 of the first n bytes of the part, as the node computes it.
func (p *put) remoteSum(ctx context.Context, n int64) (string, error) {
	if p.up.Sum != nil {
		return p.up.Sum(ctx, p.part, n)
	}
	said, err := RunForAnswer(ctx, p.conn, Command{
		Argv: []string{"sh", "-c", sumFunction + sumFirst, "sh", p.part, strconv.FormatInt(n, 10)},
	})
	if err != nil {
		return "", fmt.Errorf("computing the sha256 of %s on the node: %w", p.part, err)
	}
	said = strings.TrimSpace(said)
	sum, _, _ := strings.Cut(said[strings.LastIndexByte(said, '\n')+1:], " ") // after a greeting of the node
	return sum, nil
}

func (p *put) rename() error {
	rename := p.client.PosixRename
	if _, ok := p.client.HasExtension("posix-rename@openssh.com"); !ok {
		if _, err := p.client.Lstat(p.up.Path); err == nil {
			return &sftpDenial{fmt.Errorf("%s already exists, and the node's SFTP server cannot replace files atomically", p.up.Path)}
		}
		rename = p.client.Rename
	}
	if err := rename(p.part, p.up.Path); err != nil {
		return p.explain("renaming to "+p.up.Path, err)
	}
	return nil
}

// explain turns an error of the SFTP server into its cause. SFTP has no code for a full disk, only
// "failure", so explain looks at the free space.
func (p *put) explain(doing string, err error) error {
	status := (*sftp.StatusError)(nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &sftpDenial{p.up.noFolder(doing)}
	case errors.Is(err, fs.ErrPermission):
		return &sftpDenial{p.up.forbidden(doing, p.conn.target.User)}
	case errors.Is(err, sftp.ErrSSHFxConnectionLost), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return p.conn.lost(doing)
	case errors.Is(err, ErrLost):
		return err
	case !errors.As(err, &status):
		if p.conn.broke(err) {
			return p.conn.lost(doing)
		}
		return fmt.Errorf("%s: %w", doing, err)
	}
	// A file system may report that it is full while it has some blocks that it cannot give out.
	const scraps = 1 << 20
	free, known := p.freeBytes()
	if known && free < scraps || strings.Contains(strings.ToLower(status.Error()), "no space left") {
		return p.up.noSpace(free)
	}
	err = p.up.failed(doing, fmt.Errorf("SFTP server error %q", status.Error()))
	if p.writing && status.FxCode() == sftp.ErrSSHFxFailure {
		return err // a quota, or the disk
	}
	return &sftpDenial{err}
}

// freeBytes returns the free space in the file's directory, if the server reports it.
func (p *put) freeBytes() (free int64, known bool) {
	if _, ok := p.client.HasExtension("statvfs@openssh.com"); !ok {
		return 0, false
	}
	st, err := p.client.StatVFS(path.Dir(p.up.Path))
	if err != nil {
		return 0, false
	}
	return int64(st.Bavail * st.Frsize), true
}

// sftp opens an SFTP session on the connection. window is the number of bytes of a file that may be
// under way at once.
func (c *sshConn) sftp(ctx context.Context, window int) (*sftp.Client, error) {
	if c.noSFTP.Load() {
		return nil, errNoSFTP
	}
	opened := make(chan *sftp.Client, 1)
	done := make(chan error, 1)
	go func() {
		cl, err := c.openSFTP(ctx, sftp.MaxPacket(packet),
			sftp.MaxConcurrentRequestsPerFile(window/packet), sftp.UseConcurrentWrites(true))
		if err == nil {
			if _, tells := cl.HasExtension("limits@openssh.com"); tells { // it takes larger packets
				err = errors.Join(sftp.MaxPacketUnchecked(widePacket)(cl),
					sftp.MaxConcurrentRequestsPerFile(max(1, window/widePacket))(cl))
			}
			opened <- cl
		}
		close(opened)
		done <- err
	}()
	err := c.await(ctx, done, "opening SFTP")
	switch {
	case err == nil:
		return <-opened, nil
	case ctx.Err() != nil, errors.Is(err, ErrLost):
		go func() {
			if cl := <-opened; cl != nil {
				cl.Close()
			}
		}()
		return nil, err
	case errors.Is(err, errNoSession):
		return nil, err
	case errors.As(err, new(*endedError)), c.broke(err):
		return nil, c.lost("opening SFTP")
	}
	c.noSFTP.Store(true)
	return nil, errNoSFTP
}

// errNoSFTP means that the node has no SFTP, or that a start file of its login shell writes to stdout.
var errNoSFTP = errors.New("no SFTP server on the node")

// endSFTP ends an SFTP session. Close waits until the node closes the channel, which a server on a hung
// file system never does although sshd answers keepalives. After abortGrace, endSFTP closes the
// connection.
func (c *sshConn) endSFTP(client *sftp.Client) {
	done := make(chan struct{})
	go func() {
		client.Close() //nolint:errcheck // the result of the session is known already
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(abortGrace):
		c.abort("an SFTP session did not end")
	}
}
