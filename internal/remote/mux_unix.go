//go:build unix

package remote

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Messages between an OpenSSH and those who use its connection (PROTOCOL.mux).
const (
	muxHello   = 0x00000001
	muxForward = 0x10000008
	muxOpened  = 0x80000006
	muxDenied  = 0x80000002
	muxFailed  = 0x80000003
	muxVersion = 4

	muxMost = 256 << 10 // bytes of a message
)

// forwardBy connects to an address from the host that the OpenSSH behind a socket
// is connected to, as ssh -W does by way of a master. The master gets one end of a
// pair of sockets.
func forwardBy(path string) dialFunc {
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		control, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, func() { control.Close() })
		conn, err := forward(control.(*net.UnixConn), addr)
		if err == nil && stop() {
			return conn, nil
		}
		control.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
}

// forwarded is a connection that a master has made. It lasts as long as both of
// its sockets.
type forwarded struct {
	net.Conn
	control net.Conn
}

// RemoteAddr implements net.Conn: nobody here knows it, as with a jump host.
func (f *forwarded) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero} }

// Close implements net.Conn.
func (f *forwarded) Close() error { return errors.Join(f.Conn.Close(), f.control.Close()) }

func forward(control *net.UnixConn, addr string) (net.Conn, error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, err
	}
	if err := muxWrite(control, muxHello, uint32(muxVersion)); err != nil {
		return nil, err
	}
	if kind, body, err := muxRead(control); err != nil || kind != muxHello || len(body) < 4 || binary.BigEndian.Uint32(body) != muxVersion {
		return nil, errors.Join(errors.New("it speaks another language than OpenSSH's masters"), err)
	}
	const request = 1
	if err := muxWrite(control, muxForward, uint32(request), "", host, uint32(port)); err != nil {
		return nil, err
	}
	here, err := pair(control)
	if err != nil {
		return nil, err
	}
	if err := muxAnswer(control); err != nil {
		here.Close()
		return nil, err
	}
	return &forwarded{here, control}, nil
}

// pair gives the master one end of two sockets, as its input and as its output,
// and returns the other.
func pair(control *net.UnixConn) (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	unix.CloseOnExec(fds[0])
	unix.CloseOnExec(fds[1])
	file := os.NewFile(uintptr(fds[0]), "forwarded")
	here, err := net.FileConn(file)
	file.Close()
	for range 2 {
		if err == nil {
			_, _, err = control.WriteMsgUnix([]byte{0}, syscall.UnixRights(fds[1]), nil)
		}
	}
	unix.Close(fds[1]) //nolint:errcheck // the master has its own
	if err != nil && here != nil {
		here.Close()
		return nil, err
	}
	return here, err
}

// muxAnswer is what came of a request.
func muxAnswer(control net.Conn) error {
	kind, body, err := muxRead(control)
	switch {
	case err != nil:
		return err
	case kind == muxOpened:
		return nil
	case kind != muxDenied && kind != muxFailed || len(body) < 8:
		return fmt.Errorf("the OpenSSH at its socket answers %#x", kind)
	}
	n := min(int(binary.BigEndian.Uint32(body[4:])), len(body)-8)
	return &muxError{string(body[8 : 8+n])}
}

// muxWrite sends a message of numbers and texts.
func muxWrite(w io.Writer, kind uint32, fields ...any) error {
	b := binary.BigEndian.AppendUint32(make([]byte, 4), kind)
	for _, f := range fields {
		switch f := f.(type) {
		case uint32:
			b = binary.BigEndian.AppendUint32(b, f)
		case string:
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(f))), f...)
		}
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	_, err := w.Write(b)
	return err
}

func muxRead(r io.Reader) (kind uint32, body []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 4 || n > muxMost {
		return 0, nil, fmt.Errorf("a message of %d bytes", n)
	}
	body = make([]byte, n-4)
	_, err = io.ReadFull(r, body)
	return binary.BigEndian.Uint32(head[4:]), body, err
}
