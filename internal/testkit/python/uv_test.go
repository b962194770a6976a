package python

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

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
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		cache, err := CacheDir()
		if err != nil {
			t.Fatal(err)
		}
		bin := filepath.Join(cache, "tools", "bin")
		err = os.MkdirAll(bin, 0o755)
		if err := errors.Join(err, os.WriteFile(filepath.Join(bin, "uv"), []byte("#!/bin/sh\necho uv "+c.installed+" x86_64\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", t.TempDir())
		var said []string
		_, err = GetUV(t.Context(), "no-python", func(line string) { said = append(said, line) })
		if !slices.Equal(said, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %q, %v", c.installed, said, err)
		}
	}
}
