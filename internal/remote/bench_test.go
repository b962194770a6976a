//go:build linux

package remote_test

import (
	"path/filepath"
	"testing"

	"github.com/dsbuild/dsbuild/ci/nodes"
	"github.com/dsbuild/dsbuild/ci/nodes/nodestest"
)

func BenchmarkOpenSSH(b *testing.B) {
	f := nodestest.Up(b, nodes.Options{Count: 1, Env: nodes.NoPython})
	d := quick()
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
