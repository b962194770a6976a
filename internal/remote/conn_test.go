package remote

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// A packet that came in two pieces is sent as one. A packet that ends with the first piece is
// not held for long.
func TestPacketsInPieces(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	here, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	there, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	a := newAliveConn(here)
	defer a.Close()
	var sent []byte
	for i, size := range []int{packetBlock, 12 << 10, 100, packetBlock, 1, packetBlock, packetBlock, packetBlock, packetBlock - 1, packetBlock} {
		piece := bytes.Repeat([]byte{byte('a' + i)}, size)
		if n, err := a.Write(piece); n != size || err != nil {
			t.Fatalf("%d of %d bytes: %v", n, size, err)
		}
		sent = append(sent, piece...)
	}
	got := make([]byte, len(sent))
	there.SetReadDeadline(time.Now().Add(10 * time.Second)) //nolint:errcheck // then the read fails
	if n, err := io.ReadFull(there, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes came, the same: %v; %v", n, len(sent), bytes.Equal(got, sent), err)
	}

	// The next write reports that a held piece could not be sent.
	if _, err := a.Write(make([]byte, packetBlock)); err != nil {
		t.Fatal(err)
	}
	here.Close()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(restWithin) {
		if _, err := a.Write([]byte("x")); errors.Is(err, net.ErrClosed) {
			break
		} else if time.Now().After(end) {
			t.Fatalf("a write to a closed connection: %v", err)
		}
	}
}
