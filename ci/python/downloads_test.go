package python

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/dockerfiles"
)

// A uv of another version than the host builder's is replaced.
func TestGetUVOfTheBuilders(t *testing.T) {
	for _, c := range []struct {
		installed string
		want      []string
	}{
		{dockerfiles.UVVersion(), nil},
		{dockerfiles.UVVersion() + "1", []string{"installing uv …"}},
		{"0.1.0", []string{"installing uv …"}},
	} {
		cache := t.TempDir()
		bin := filepath.Join(cache, "tools", "bin")
		err := os.MkdirAll(bin, 0o755)
		if err := errors.Join(err, os.WriteFile(filepath.Join(bin, "uv"), []byte("#!/bin/sh\necho uv "+c.installed+" x86_64\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", t.TempDir())
		var said []string
		_, err = GetUV(t.Context(), cache, "no-python", func(line string) { said = append(said, line) })
		if !slices.Equal(said, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %q, %v", c.installed, said, err)
		}
	}
}

func TestDownloads(t *testing.T) {
	d := &downloads{sizes: map[string]float64{}}
	expect := func(elapsed time.Duration, want string) {
		t.Helper()
		if got := d.describeProgress(elapsed); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	expect(2*time.Second, "resolving (2 s so far)")
	for _, line := range []string{"Resolved 30 packages in 1.2s", "Downloading torch (750.0MiB)", "   Downloading nvidia-cudnn (1.0GiB)", "Downloading tqdm (512.0KiB)", "Downloading odd (1.1.1MiB)"} {
		d.addLine(line)
	}
	expect(10*time.Second, "0 of 1774 MB downloaded (10 s so far)")
	d.addLine(" Downloaded torch")
	d.addLine(" Downloaded stranger")
	expect(30*time.Second, "750 of 1774 MB downloaded (30 s so far, about 40 s more)")
	d.addLine(" Downloaded nvidia-cudnn")
	d.addLine(" Downloaded tqdm")
	expect(60*time.Second, "1774 of 1774 MB downloaded (60 s so far)")
}
