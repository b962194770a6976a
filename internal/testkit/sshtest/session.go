//go:build unix

package sshtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// session serves one command, or SFTP.
func (s *Server) session(nc ssh.NewChannel) {
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	s.count(func(t *Trips) { t.Sessions++ })
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel() // when the client leaves, its programs end
	started := false
	for r := range reqs {
		if r.WantReply && r.Type != "keepalive@openssh.com" {
			s.count(func(t *Trips) { t.Requests++ })
		}
		var word struct{ S string }
		switch {
		case r.Type == "exec" && !started && ssh.Unmarshal(r.Payload, &word) == nil:
			started = true
			r.Reply(true, nil)
			work.Go(func() { s.exec(ctx, ch, word.S) })
		case r.Type == "subsystem" && !started && ssh.Unmarshal(r.Payload, &word) == nil && word.S == "sftp" && !s.opt.NoSFTP:
			started = true
			r.Reply(true, nil)
			work.Go(func() { s.sftp(ctx, ch) })
		case r.Type == "signal":
			cancel()
		default:
			r.Reply(false, nil)
		}
	}
}

func (s *Server) exec(ctx context.Context, ch ssh.Channel, line string) {
	defer ch.Close()
	if s.opt.Exec != nil {
		status(ch, s.opt.Exec(line, ch, ch, ch.Stderr()))
		return
	}
	shell := s.opt.Shell
	if shell == nil {
		shell = []string{"/bin/sh", "-c"}
	}
	io.WriteString(ch, s.opt.Greeting)
	cmd := exec.CommandContext(ctx, shell[0], append(slices.Clone(shell[1:]), line)...)
	cmd.Dir = s.Home
	cmd.Env = append([]string{"HOME=" + s.Home, "PATH=" + os.Getenv("PATH"), "USER=" + s.User}, s.opt.Env...)
	cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Minute // a busy machine reads the last output late
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return
	}
	if err := cmd.Start(); err != nil {
		status(ch, 127)
		return
	}
	go func() {
		io.Copy(io.MultiWriter(stdin, &orders{server: s}), ch)
		stdin.Close()
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		status(ch, 0)
	case !errors.As(err, &exit):
		status(ch, 255)
	default:
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			signalled(ch, ws.Signal())
			return
		}
		status(ch, exit.ExitCode())
	}
}

// orders counts the orders to an agent in the input of a command.
type orders struct {
	server *Server
	text   []byte
}

// Write implements io.Writer.
func (o *orders) Write(b []byte) (int, error) {
	number := []byte(`"number":`) // each order has one
	o.text = append(o.text, b...)
	n := bytes.Count(o.text, number)
	o.server.count(func(t *Trips) { t.Orders += n })
	o.text = o.text[max(0, len(o.text)-len(number)+1):]
	return len(b), nil
}

// packets counts the packets that an SFTP client sends.
type packets struct {
	ssh.Channel
	server *Server
	length []byte // of the next packet, as far as it has come
	left   uint32 // bytes of the packet under way
}

// Read implements io.Reader.
func (p *packets) Read(b []byte) (int, error) {
	n, err := p.Channel.Read(b)
	for rest := b[:n]; len(rest) > 0; {
		if p.left > 0 {
			part := min(p.left, uint32(len(rest)))
			p.left, rest = p.left-part, rest[part:]
			continue
		}
		p.length, rest = append(p.length, rest[0]), rest[1:]
		if len(p.length) == 4 {
			p.left, p.length = binary.BigEndian.Uint32(p.length), nil
			p.server.count(func(t *Trips) { t.SFTP++ })
		}
	}
	return n, err
}

func status(ch ssh.Channel, code int) {
	ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
}

func signalled(ch ssh.Channel, sig syscall.Signal) {
	names := map[syscall.Signal]string{syscall.SIGKILL: "KILL", syscall.SIGTERM: "TERM", syscall.SIGSEGV: "SEGV", syscall.SIGILL: "ILL", syscall.SIGABRT: "ABRT"}
	ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
		Name         string
		Core         bool
		Text, Locale string
	}{names[sig], false, sig.String(), ""}))
}

func (s *Server) sftp(ctx context.Context, ch ssh.Channel) {
	defer ch.Close()
	io.WriteString(ch, s.opt.Greeting)
	h := &files{s}
	handlers := sftp.Handlers{FileGet: h, FilePut: h, FileCmd: h, FileList: h}
	if !s.opt.HideFree {
		handlers.FileCmd = spacious{h}
	}
	srv := sftp.NewRequestServer(&packets{Channel: ch, server: s}, handlers)
	srv.Serve()
	if s.opt.IgnoreEOF {
		<-ctx.Done()
	}
	srv.Close()
}

// files serves the real file system, with the faults of Options.
type files struct{ s *Server }

// Fileread implements sftp.FileReader.
func (h *files) Fileread(r *sftp.Request) (io.ReaderAt, error) { return os.Open(r.Filepath) }

// Filewrite implements sftp.FileWriter.
func (h *files) Filewrite(r *sftp.Request) (io.WriterAt, error) {
	p := r.Pflags()
	flags := os.O_WRONLY
	if p.Creat {
		flags |= os.O_CREATE
	}
	if p.Excl {
		flags |= os.O_EXCL
	}
	if p.Trunc {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(r.Filepath, flags, 0o666)
	if err != nil {
		return nil, err
	}
	return &file{f, h.s}, nil
}

// Filecmd implements sftp.FileCmder.
func (h *files) Filecmd(r *sftp.Request) error {
	switch r.Method {
	case "Setstat":
		if r.AttrFlags().Size {
			if err := os.Truncate(r.Filepath, int64(r.Attributes().Size)); err != nil {
				return err
			}
		}
		if r.AttrFlags().Permissions {
			return os.Chmod(r.Filepath, r.Attributes().FileMode().Perm())
		}
		return nil
	case "Remove":
		return os.Remove(r.Filepath)
	case "Rename":
		if _, err := os.Lstat(r.Target); err == nil {
			return sftp.ErrSSHFxFailure
		}
		return os.Rename(r.Filepath, r.Target)
	case "Mkdir":
		return os.Mkdir(r.Filepath, 0o777)
	case "Rmdir":
		return os.Remove(r.Filepath)
	}
	return sftp.ErrSSHFxOpUnsupported
}

// PosixRename implements sftp.PosixRenameFileCmder.
func (h *files) PosixRename(r *sftp.Request) error { return os.Rename(r.Filepath, r.Target) }

// Filelist implements sftp.FileLister.
func (h *files) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	switch r.Method {
	case "Stat":
		st, err := os.Stat(r.Filepath)
		return infos{st}, err
	case "List":
		entries, err := os.ReadDir(r.Filepath)
		if err != nil {
			return nil, err
		}
		var all infos
		for _, e := range entries {
			if st, err := e.Info(); err == nil {
				all = append(all, st)
			}
		}
		return all, nil
	}
	return nil, sftp.ErrSSHFxOpUnsupported
}

// Lstat implements sftp.LstatFileLister.
func (h *files) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	st, err := os.Lstat(r.Filepath)
	return infos{st}, err
}

type infos []os.FileInfo

// ListAt implements sftp.ListerAt.
func (l infos) ListAt(to []os.FileInfo, at int64) (int, error) {
	if at >= int64(len(l)) {
		return 0, io.EOF
	}
	n := copy(to, l[at:])
	if n < len(to) {
		return n, io.EOF
	}
	return n, nil
}

// spacious adds statvfs, which reports the free space by Options.NoSpaceAfter.
type spacious struct{ *files }

// StatVFS implements sftp.StatVFSFileCmder.
func (h spacious) StatVFS(*sftp.Request) (*sftp.StatVFS, error) {
	free := int64(1 << 40)
	if k := h.s.opt.NoSpaceAfter; k > 0 {
		free = max(0, k-h.s.written.Load())
	}
	return &sftp.StatVFS{Bsize: 1, Frsize: 1, Blocks: 1 << 40, Bfree: uint64(free), Bavail: uint64(free), Namemax: 255}, nil
}

// file is a file under upload.
type file struct {
	*os.File
	s *Server
}

// WriteAt implements io.WriterAt.
func (f *file) WriteAt(b []byte, off int64) (int, error) {
	if k := f.s.opt.NoSpaceAfter; k > 0 && f.s.written.Load()+int64(len(b)) > k {
		// OpenSSH sends no more detail either.
		return 0, sftp.ErrSSHFxFailure
	}
	f.s.written.Add(int64(len(b)))
	if f.s.opt.Corrupt && off == 0 && len(b) > 0 {
		b = append([]byte(nil), b...)
		b[len(b)/2] ^= 1
	}
	return f.File.WriteAt(b, off)
}
