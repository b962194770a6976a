//go:build linux

package remote_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

func BenchmarkOpenSSH(b *testing.B) {
	f := nodestest.Up(b, nodes.Options{Count: 1, Env: nodes.NoPython})
	d := native.quick()
	b.Run("dial", func(b *testing.B) {
		for b.Loop() {
			c, err := d.Dial(b.Context(), fleetTarget(f, 0))
			if err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
	b.Run("put 64 MiB", func(b *testing.B) {
		c, err := d.Dial(b.Context(), fleetTarget(f, 0))
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		up, _ := blob(64<<20, filepath.Join(f.Nodes[0].Home, "big"))
		b.SetBytes(up.Size)
		for b.Loop() {
			if err := c.Put(b.Context(), up); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkResolve asks ssh -G about 200 nodes behind a jump host.
func BenchmarkResolve(b *testing.B) {
	file := filepath.Join(b.TempDir(), "config")
	if err := os.WriteFile(file, []byte("Host gpu*\n HostName %h.cluster\n User train\n ProxyJump bastion\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		d := remote.NewSSH(remote.Options{Config: file, AgentSocket: "none"})
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				if _, err := d.Resolve(b.Context(), remote.Target{Address: fmt.Sprintf("gpu%03d", i)}); err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
	}
}
