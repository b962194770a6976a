package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// wheelhouseDocument describes a wheelhouse in the output of --json.
type wheelhouseDocument struct {
	Path string `json:"path"`
	wheel.Bundle
}

func newWheelhouseDocument(dir string, b *wheel.Bundle) *wheelhouseDocument {
	if b == nil {
		return nil
	}
	return &wheelhouseDocument{filepath.Join(dir, wheel.WheelhouseDir), *b}
}

// printWheelhouse names the wheelhouse and lists its wheels.
func printWheelhouse(a *app, dir string, b *wheel.Bundle) error {
	if b == nil {
		return nil
	}
	var size int64
	lists := map[string][]string{}
	for _, w := range b.Wheels {
		size += w.Size
		lists[w.Why] = append(lists[w.Why], w.Name+" "+w.Version)
	}
	_, err := fmt.Fprintf(a.stdout, "%s\n  %d wheels for Python %s, %s\n", relativePath(filepath.Join(dir, wheel.WheelhouseDir)), len(b.Wheels), b.Python, ui.Size(size))
	for _, why := range []struct{ key, title string }{{wheel.Companion, "companions"}, {wheel.Dependency, "dependencies"}} {
		if err == nil && len(lists[why.key]) > 0 {
			_, err = fmt.Fprintf(a.stdout, "  %s %s\n", why.title, strings.Join(lists[why.key], ", "))
		}
	}
	return err
}
