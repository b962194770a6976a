package remote

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// abortGrace limits the time for a cancelled upload to stop and for an SFTP session to end. After
// that dsbuild gives up the whole connection.
const abortGrace = 3 * time.Second

// packet is the size of the packets of an upload, which every server accepts. Larger ones have
// corrupted files elsewhere.
const packet = 32 << 10

// widePacket is the packet size for servers with limits@openssh.com. OpenSSH's servers accept it,
// and OpenSSH's own client uses it: both sides need a quarter less CPU time.
const widePacket = 255 << 10

// inFlight is the number of bytes of a file that may be under way at once, and fewInFlight that of
// a file up to smallFile. dsbuild keeps them in memory until the node confirms them, for many nodes
// at once. If a connection breaks, that many of the last bytes of a part may have holes.
const (
	inFlight    = 64 * packet
	fewInFlight = 24 * packet
	smallFile   = 8 << 20
)

// Put implements Conn.
func (c *sshConn) Put(ctx context.Context, up Upload) error {
	if err := up.Check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p := &put{conn: c, up: up, tmp: path.Join(path.Dir(up.Path), ".dsbuild-"+rand.Text()[:16]+PartSuffix)}
	if up.Resume {
		p.tmp = up.Path + PartSuffix
	}
	err := p.guarded(ctx)
	if errors.Is(err, errNoSFTP) {
		return putByProgram(ctx, c, c.target.User, up)
	}
	if err == nil || !p.created || up.Resume && errors.Is(err, ErrLost) {
		return err
	}
	if left := p.cleanUp(ctx); errors.Is(left, ErrLost) {
		err = fmt.Errorf("%w (%s may be left there)", err, p.tmp)
	} else if left != nil {
		err = fmt.Errorf("%w (%s may be left there: %w)", err, p.tmp, left)
	}
	return err
}

// put is one upload under way.
type put struct {
	conn    *sshConn
	up      Upload
	tmp     string
	client  *sftp.Client
	created bool
	at      int64  // number of bytes that are already there and proven right
	written string // sha256 of all written bytes, if known
}

// guarded runs the upload and ends it when ctx ends. pkg/sftp knows no context, so guarded closes
// its client. If even that gets no answer, guarded breaks the connection. It returns only after the
// upload has stopped.
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
			p.conn.giveUp("it did not end a cancelled upload")
			<-done
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// run does the steps of the upload in order. Each request to the node costs a round trip.
func (p *put) run(ctx context.Context) error {
	f, err := p.open(ctx)
	if err != nil {
		return err
	}
	if f != nil {
		if err := p.write(ctx, f); err != nil {
			return err
		}
		if err := p.verify(ctx); err != nil {
			return err
		}
	}
	return p.rename()
}

// open opens the remote file at the byte where the transfer begins. It returns nil if the whole
// file is there already.
func (p *put) open(ctx context.Context) (*sftp.File, error) {
	if !p.up.Resume {
		if err := p.room(); err != nil {
			return nil, err
		}
		return p.create()
	}
	f, refused := p.create()
	if refused == nil {
		return f, nil
	}
	st, err := p.client.Lstat(p.tmp)
	if err != nil { // SFTP has no code for "exists already", so Lstat shows that this was another error
		return nil, refused
	}
	switch err := p.goOn(ctx, st); {
	case err != nil:
		return nil, err
	case p.at == 0:
		return p.create()
	case p.at == p.up.Size:
		return nil, nil
	}
	f, err = p.client.OpenFile(p.tmp, os.O_WRONLY)
	if err == nil {
		_, err = f.Seek(p.at, io.SeekStart)
	}
	if err != nil {
		return nil, p.explain(fmt.Sprintf("opening %s at byte %d", p.tmp, p.at), err)
	}
	return f, nil
}

// create makes the remote file. It sets the mode while the file is empty, so that nobody else can
// read the contents.
func (p *put) create() (*sftp.File, error) {
	f, err := p.client.OpenFile(p.tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, p.explain("creating a file in "+path.Dir(p.tmp), err)
	}
	p.created = true
	if err := f.Chmod(p.up.Mode.Perm()); err != nil {
		f.Close()
		return nil, p.explain("setting the mode of "+p.tmp, err)
	}
	return f, nil
}

// goOn finds out how much of the file an earlier try left: the longest prefix with the same bytes.
// It cuts off the rest, or removes the file if no prefix matches.
func (p *put) goOn(ctx context.Context, st fs.FileInfo) error {
	if st.Mode().IsRegular() {
		for _, n := range []int64{min(st.Size(), p.up.Size), min(st.Size(), p.up.Size) - inFlight} {
			if n <= 0 {
				break
			}
			here, err := p.localSum(ctx, n)
			if err != nil {
				return err
			}
			there, err := p.remoteSum(ctx, n)
			if err != nil {
				return err
			}
			if here == there {
				p.at, p.created = n, true
				if p.up.Progress != nil {
					p.up.Progress(n)
				}
				return p.cut(st.Size())
			}
		}
	}
	if err := p.client.Remove(p.tmp); err != nil {
		return p.explain("removing "+p.tmp, err)
	}
	return nil
}

// cut truncates the part, of size bytes, after the bytes that are right.
func (p *put) cut(size int64) error {
	if size == p.at {
		return nil
	}
	if err := p.client.Truncate(p.tmp, p.at); err != nil {
		return p.explain("cutting "+p.tmp, err)
	}
	return p.length(p.at)
}

// length checks the size of the remote file, because some servers do not truncate.
func (p *put) length(want int64) error {
	st, err := p.client.Stat(p.tmp)
	if err != nil {
		return p.explain("looking at "+p.tmp, err)
	}
	if st.Size() != want {
		return fmt.Errorf("%s has %d bytes on the node, not %d", p.tmp, st.Size(), want)
	}
	return nil
}

// localSum returns the sha256 of the first n bytes of the local file.
func (p *put) localSum(ctx context.Context, n int64) (string, error) {
	sum, _, err := p.up.localSum(ctx, n)
	return sum, err
}

// room returns an error if the file cannot fit, before any byte is sent.
func (p *put) room() error {
	if free, known := p.free(); known && free < p.up.Size-p.at {
		return p.up.NoSpace(free)
	}
	return nil
}

func (p *put) write(ctx context.Context, f *sftp.File) error {
	defer f.Close()
	local, err := p.up.Open()
	if err != nil {
		return err
	}
	defer local.Close()
	if _, err := local.Seek(p.at, io.SeekStart); err != nil {
		return fmt.Errorf("reading the local file: %w", err)
	}
	// The limit is one byte more than announced, so that dsbuild notices a file that has grown.
	m := &meter{ctx: ctx, r: io.LimitReader(local, p.up.Size-p.at+1), limit: p.up.Limit, told: p.up.Progress}
	err = p.send(ctx, f, m)
	n, unread := m.read()
	switch {
	case unread != nil:
		return fmt.Errorf("reading the local file: %w", unread)
	case err != nil:
		return p.explain("writing "+p.tmp, err)
	case p.at+n != p.up.Size:
		return p.up.Changed(p.at + n)
	}
	if _, ok := p.client.HasExtension("fsync@openssh.com"); ok && !p.up.Resume {
		if err := f.Sync(); err != nil {
			return p.explain("writing "+p.tmp+" to disk", err)
		}
	}
	if err := f.Close(); err != nil {
		return p.explain("closing "+p.tmp, err)
	}
	return nil
}

// send sends the rest of the file.
func (p *put) send(ctx context.Context, f *sftp.File, m *meter) (err error) {
	if p.up.Write != nil {
		p.written, err = p.up.Write(ctx, p.tmp, p.at, m)
	} else {
		// ReadFrom would send one packet at a time, because m hides its length.
		_, err = f.ReadFromWithConcurrency(m, 0)
	}
	return err
}

// verify compares the length and the sha256 with those of the remote file.
func (p *put) verify(ctx context.Context) error {
	if p.up.Sum == nil || p.written != "" { // otherwise only this program has written the file
		if err := p.length(p.up.Size); err != nil {
			return err
		}
	}
	there, err := p.remoteSum(ctx, p.up.Size)
	if err != nil || there == p.up.SHA256 {
		return err
	}
	here, err := p.localSum(ctx, p.up.Size)
	switch {
	case err != nil:
		return err
	case here != p.up.SHA256:
		return p.up.Changed(p.up.Size)
	}
	return p.up.Corrupted(p.tmp, there)
}

// sumScript prints the sha256 of the first $2 bytes of $1 with a program of the node. openssl comes
// first, because it uses the CPU's SHA instructions; many sha256sum programs take five times as
// long.
const sumScript = `if command -v openssl >/dev/null && openssl dgst -sha256 -r </dev/null >/dev/null 2>&1; then sum() { openssl dgst -sha256 -r; }
elif command -v sha256sum >/dev/null; then sum() { sha256sum; }
elif command -v shasum >/dev/null; then sum() { shasum -a 256; }
elif command -v python3 >/dev/null; then sum() { python3 -c 'import hashlib,sys;print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'; }
else exit 127; fi
head -c "$2" <"$1" | sum`

// remoteSum returns the sha256 of the first n bytes of the temporary file. If the program of
// Upload.Write reported the sha256, remoteSum returns that. Otherwise the node computes it. If the
// node cannot (it has no such program, or its shell does not see the SFTP root), remoteSum reads the
// bytes back.
func (p *put) remoteSum(ctx context.Context, n int64) (string, error) {
	if p.written != "" {
		return p.written, nil
	}
	if p.up.Sum != nil {
		return p.up.Sum(ctx, p.tmp, n)
	}
	said, err := RunForAnswer(ctx, p.conn, Command{Argv: []string{"sh", "-c", sumScript, "sh", p.tmp, strconv.FormatInt(n, 10)}})
	if err == nil {
		// Some nodes print a greeting before every command, so the answer is the last line.
		lines := strings.Split(strings.TrimSpace(said), "\n")
		sum, _, _ := strings.Cut(lines[len(lines)-1], " ")
		if b, err := hex.DecodeString(sum); err == nil && len(b) == sha256.Size && !(sum == emptySum && n > 0) {
			return sum, nil
		}
	}
	if errors.Is(err, ErrLost) || errors.Is(err, ErrFlood) || ctx.Err() != nil {
		return "", err
	}
	f, err := p.client.Open(p.tmp)
	if err != nil {
		return "", p.explain("reading back "+p.tmp, err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := f.WriteTo(&first{h, n}); err != nil {
		return "", p.explain("reading back "+p.tmp, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// emptySum is the sha256 of no bytes. The script prints it if the file or head is missing.
const emptySum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// first is a Writer that passes on the next left bytes and drops the rest.
type first struct {
	w    io.Writer
	left int64
}

// Write implements io.Writer.
func (f *first) Write(b []byte) (int, error) {
	some := b[:min(int64(len(b)), f.left)]
	f.left -= int64(len(some))
	if _, err := f.w.Write(some); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (p *put) rename() error {
	if _, ok := p.client.HasExtension("posix-rename@openssh.com"); !ok {
		if _, err := p.client.Lstat(p.up.Path); err == nil {
			return fmt.Errorf("%s exists, and the node's SFTP server cannot replace a file atomically", p.up.Path)
		}
		if err := p.client.Rename(p.tmp, p.up.Path); err != nil {
			return p.explain("renaming to "+p.up.Path, err)
		}
		return nil
	}
	if err := p.client.PosixRename(p.tmp, p.up.Path); err != nil {
		return p.explain("renaming to "+p.up.Path, err)
	}
	return nil
}

// cleanUp removes the temporary file. It opens its own SFTP session, because ctx and the first
// session may have ended.
func (p *put) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	client, err := p.conn.sftp(ctx, packet)
	if err != nil {
		return err
	}
	defer p.conn.endSFTP(client)
	done := make(chan error, 1)
	go func() { done <- client.Remove(p.tmp) }()
	err = p.conn.await(ctx, done, "removing "+p.tmp)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// free returns the free bytes of the target's file system, as the SFTP server reports them.
func (p *put) free() (bytesFree int64, known bool) {
	dir := path.Dir(p.up.Path)
	if _, ok := p.client.HasExtension("statvfs@openssh.com"); ok {
		if st, err := p.client.StatVFS(dir); err == nil {
			return int64(st.Bavail * st.Frsize), true
		}
	}
	return 0, false
}

// freeByDF returns the free bytes by df. dsbuild runs df only after a failure, for servers without
// statvfs.
func (p *put) freeByDF() (bytesFree int64, known bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	said, err := RunForAnswer(ctx, p.conn, Command{Argv: []string{"df", "-Pk", path.Dir(p.up.Path)}})
	if err != nil {
		return 0, false
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	cols := strings.Fields(lines[len(lines)-1])
	if len(cols) < 6 {
		return 0, false
	}
	kb, err := strconv.ParseInt(cols[3], 10, 64)
	return kb * 1024, err == nil
}

// explain turns an error of the SFTP server into its cause. SFTP has no code for a full disk, only
// "failure", so explain looks at the free space.
func (p *put) explain(doing string, err error) error {
	status := (*sftp.StatusError)(nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return p.up.NoFolder(doing)
	case errors.Is(err, fs.ErrPermission):
		return p.up.Forbidden(doing, p.conn.target.User)
	case errors.Is(err, sftp.ErrSSHFxConnectionLost), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return p.conn.lost(doing)
	case errors.Is(err, ErrLost):
		return err
	case !errors.As(err, &status) && !errors.As(err, new(*ExitError)):
		if p.conn.broke(err) {
			return p.conn.lost(doing)
		}
		return fmt.Errorf("%s: %w", doing, err)
	}
	free, known := p.free()
	if !known {
		free, known = p.freeByDF()
	}
	// A file system may report that it is full while it has some blocks that it cannot give out.
	const scraps = 1 << 20
	if strings.Contains(strings.ToLower(err.Error()), "no space") || known && free < scraps {
		return p.up.NoSpace(free)
	}
	if status != nil {
		err = fmt.Errorf("the node's SFTP server answers %q", status.Error())
	} else if !strings.Contains(err.Error(), "[Errno ") { // an error not about the file
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fault.WithHint(fmt.Errorf("%s: %w", doing, err),
		"check quota, read-only file systems and permissions: on the node, try: touch %s", Quote(path.Join(path.Dir(p.up.Path), ".dsbuild-test")))
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
		cl, err := c.link.sftp(sftp.MaxPacket(packet), sftp.MaxConcurrentRequestsPerFile(window/packet), sftp.UseConcurrentWrites(true))
		if err == nil {
			err = widen(cl, window)
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

// errNoSFTP means that the node has no SFTP, or that a start file of its login shell prints something
// into it.
var errNoSFTP = errors.New("the node has no SFTP")

// widen sends larger packets to a server that reports its limits.
func widen(cl *sftp.Client, window int) error {
	if _, ok := cl.HasExtension("limits@openssh.com"); !ok {
		return nil
	}
	return errors.Join(sftp.MaxPacketUnchecked(widePacket)(cl), sftp.MaxConcurrentRequestsPerFile(max(1, window/widePacket))(cl))
}

// endSFTP ends an SFTP session. Its Close waits until the node closes the channel. A server stuck
// on a hung file system never closes it while sshd still answers keepalives. After abortGrace,
// endSFTP gives up the connection.
func (c *sshConn) endSFTP(client *sftp.Client) {
	done := make(chan struct{})
	go func() {
		client.Close() //nolint:errcheck // the result of the session is known already
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(abortGrace):
		c.giveUp("it did not end an SFTP session")
	}
}

// meter counts the bytes read from a local file, slows the reading down to limit, and ends it with
// ctx. read may be called while an abandoned command still reads.
type meter struct {
	ctx   context.Context
	r     io.Reader
	limit *rate.Limiter
	told  func(int64)

	mu   sync.Mutex
	n    int64
	err  error
	done bool
}

// read ends the reading and returns the number of bytes read and the error of the reading.
func (m *meter) read() (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = true
	return m.n, m.err
}

// note records the result of one Read.
func (m *meter) note(n int, err error) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done {
		return 0, io.EOF
	}
	m.n += int64(n)
	if n > 0 && m.told != nil {
		m.told(int64(n))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		m.err = err
	}
	return n, err
}

// Read implements io.Reader.
func (m *meter) Read(b []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return m.note(0, err)
	}
	if m.limit != nil {
		b = b[:min(len(b), LimitBurst)]
	}
	n, err := m.r.Read(b)
	if n > 0 && m.limit != nil {
		if held := m.limit.WaitN(m.ctx, n); held != nil {
			return m.note(0, held)
		}
	}
	return m.note(n, err)
}
