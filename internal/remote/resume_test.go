//go:build linux

package remote_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// The test cuts the connection after a number of bytes, from the handshake to the last byte. The
// next try goes on from the bytes that are proven to be there.
func TestCutAnywhereThenResume(t *testing.T) { testCutAnywhereThenResume(t, 293<<10) }

func testCutAnywhereThenResume(t *testing.T, step int64) {
	t.Parallel()
	const size = 5 << 20
	resumed := 0
	for k := int64(1); k < size+256<<10; k += step {
		s := sshtest.Start(t, sshtest.Options{CutAfter: k, Cuts: 1})
		up, want := blob(size, filepath.Join(s.Home, "file"))
		err := tryPut(t, s, up)
		if err == nil && k == 1 {
			continue // the server turned it away, and it came again
		}
		if err == nil {
			t.Logf("byte %d lies behind the transfer", k)
			break
		}
		if !errors.Is(err, remote.ErrLost) && !errors.Is(err, remote.ErrDial) {
			t.Fatalf("cut after %d bytes: %v", k, err)
		}
		if _, err := os.Stat(up.Path); err == nil {
			t.Fatalf("cut after %d bytes: the file is there", k)
		}
		st, err := os.Stat(up.Path + remote.PartSuffix)
		part := int64(0)
		if err == nil {
			part = st.Size()
		}
		var there, told atomic.Int64 // the bytes that the second try need not send
		up.Progress = func(n int64) {
			if told.Add(n) == n && n > remote.LimitBurst {
				there.Store(n)
			}
		}
		if err := tryPut(t, s, up); err != nil {
			t.Fatalf("cut after %d bytes, then: %v", k, err)
		}
		if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("cut after %d bytes: another file arrived (%d bytes, %v)", k, len(got), err)
		}
		if told.Load() != size {
			t.Errorf("cut after %d bytes: progress told %d", k, told.Load())
		}
		if _, err := os.Stat(up.Path + remote.PartSuffix); err == nil {
			t.Errorf("cut after %d bytes: the part is still there", k)
		}
		const inFlight = 2 << 20 // this many bytes may have holes
		if part > inFlight {
			resumed++
			if there.Load() < part-inFlight {
				t.Errorf("cut after %d bytes: of %d bytes %d counted", k, part, there.Load())
			}
			if st.Mode().Perm() != 0o640 {
				t.Errorf("the part has mode %v", st.Mode())
			}
		}
	}
	if resumed < int(size/step/13) { // on a busy machine, more transfers are cut before the program has written much
		t.Errorf("%d transfers were cut late", resumed)
	}
}

func tryPut(t *testing.T, s *sshtest.Server, up remote.Upload) error {
	t.Helper()
	c, err := native.quick().Dial(t.Context(), s.Target())
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Put(t.Context(), up)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// The file in place of a part may be anything.
func TestResumeTrustsNothing(t *testing.T) { testResumeTrustsNothing(t, native) }

func testResumeTrustsNothing(t *testing.T, by way) {
	t.Parallel()
	s := sshtest.Start(t, sshtest.Options{})
	c := dial(t, by.quick(), s.Target())
	up, want := blob(3<<20, filepath.Join(s.Home, "file"))
	part := up.Path + remote.PartSuffix
	other := bytes.Clone(want)
	other[100] ^= 1
	holes := bytes.Clone(want[:5<<19])
	copy(holes[2<<20:], make([]byte, 64<<10))
	for name, c2 := range map[string]struct {
		make  func() error
		least int64 // bytes that must be sent
		most  int64
	}{
		"nothing":           {func() error { return nil }, 3 << 20, 3 << 20},
		"the half":          {func() error { return os.WriteFile(part, want[:3<<19], 0o600) }, 3 << 19, 3 << 19},
		"all of it":         {func() error { return os.WriteFile(part, want, 0o600) }, 0, 0},
		"more than all":     {func() error { return os.WriteFile(part, append(bytes.Clone(want), "more"...), 0o600) }, 0, 0},
		"other bytes":       {func() error { return os.WriteFile(part, other, 0o600) }, 3 << 20, 3 << 20},
		"holes at the end":  {func() error { return os.WriteFile(part, holes, 0o600) }, 1, 3<<20 - 1<<18},
		"a link to a file":  {func() error { return os.Symlink("/etc/passwd", part) }, 3 << 20, 3 << 20},
		"a file of nothing": {func() error { return os.WriteFile(part, nil, 0o600) }, 3 << 20, 3 << 20},
	} {
		os.Remove(up.Path)
		if err := c2.make(); err != nil {
			t.Fatal(err)
		}
		var asked, sent atomic.Int64
		up := up
		up.Sum = func(_ context.Context, path string, n int64) (string, error) {
			asked.Add(1)
			b, err := os.ReadFile(path)
			return digest(b[:min(int64(len(b)), n)]), err
		}
		up.Limit = rate.NewLimiter(rate.Inf, remote.LimitBurst)
		first := true
		up.Progress = func(n int64) {
			if first && name != "nothing" && n > remote.LimitBurst {
				first = false
				return // what was there
			}
			sent.Add(n)
		}
		if err := c.Put(t.Context(), up); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: another file arrived (%d bytes, %v)", name, len(got), err)
		}
		if n := sent.Load(); n < c2.least || n > c2.most {
			t.Errorf("%s: %d bytes were sent, want %d to %d", name, n, c2.least, c2.most)
		}
		if asked.Load() == 0 {
			t.Errorf("%s: Sum was not asked", name)
		}
	}
	if b, err := os.ReadFile("/etc/passwd"); err != nil || !strings.Contains(string(b), "root") {
		t.Error("a link was followed")
	}
}

// All uploads that share a limit count towards it.
func TestBandwidthLimit(t *testing.T) {
	t.Parallel()
	s := sshtest.Start(t, sshtest.Options{})
	limit := rate.NewLimiter(1<<20, remote.LimitBurst) // 1 MiB/s
	begin := time.Now()
	errs := make(chan error)
	for _, name := range []string{"a", "b"} {
		up, _ := blob(512<<10, filepath.Join(s.Home, name))
		up.Limit = limit
		c := dial(t, native.quick(), s.Target())
		go func() { errs <- c.Put(t.Context(), up) }()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	// A loaded machine cannot be faster than the limit, so only that is tested.
	if d := time.Since(begin); d < 900*time.Millisecond {
		t.Errorf("1 MiB went out in %s at 1 MiB/s", d)
	}
}
