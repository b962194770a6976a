package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/wheel"
)

// isSquashfs reports whether an output is a squashfs.
func isSquashfs(output string) bool {
	return strings.HasSuffix(output, ".sqsh") || strings.HasSuffix(output, ".squashfs")
}

// squashProgram makes a squashfs of a tar on its standard input, so that nothing is unpacked.
const squashProgram = "sqfstar"

// FindSquashProgram refuses a squashfs where its program is missing.
func FindSquashProgram() (string, error) {
	program, err := exec.LookPath(squashProgram)
	if err != nil {
		return "", hint.With(fmt.Errorf("a squashfs needs the program %s: %w", squashProgram, err), "install squashfs-tools 4.5 or newer; or write a .tar, which 'enroot import dockerd://' and 'apptainer build IMAGE.sif docker-archive:IMAGE.tar' read")
	}
	return program, nil
}

// writeSquashfs writes the whole image, flattened: a squashfs has no layers.
func (p *Plan) writeSquashfs(ctx context.Context, image v1.Image, result *Result) error {
	result.Image = p.opt.Output
	if _, err := os.Lstat(p.opt.Output); err == nil && !p.opt.Force {
		return usagef(forceHint, "%s is there already", p.opt.Output)
	}
	program, err := FindSquashProgram()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(p.opt.Output), ".dsbuild-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // nobody can do anything about it
	made := filepath.Join(dir, "image")
	image, err = withRuntimeFiles(image)
	if err != nil {
		return err
	}
	newest, err := newestEntry(ctx, image)
	if err != nil {
		return err
	}
	files := flatten(image)
	defer files.Close()
	cmd := exec.CommandContext(ctx, program, "-quiet", "-no-progress", "-reproducible", made)
	// Else the root folder has the time of this run: sqfstar 4.5 ignores its own -root-time.
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(newest.Unix(), 10))
	cmd.Stdin = files
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(context.Cause(ctx), fmt.Errorf("%s: %w: %s", squashProgram, err, strings.TrimSpace(string(out[max(0, len(out)-2000):]))))
	}
	return os.Rename(made, p.opt.Output)
}

// withRuntimeFiles adds the files from which enroot takes the variables, the working directory and
// the command of a container. A squashfs has no configuration.
func withRuntimeFiles(image v1.Image) (v1.Image, error) {
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	c := content{files: []file{
		textFile("etc/environment", 0o644, []byte(strings.Join(append(config.Config.Env, ""), "\n"))),
		textFile("etc/rc", 0o755, []byte(startScript(config.Config))),
	}}
	if err := writeTar(context.Background(), &text, c, config.Created.Time); err != nil {
		return nil, err
	}
	top, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil })
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(image, top)
}

// startScript starts the entry point in the working directory, with the arguments of the user or
// else the image's command.
func startScript(c v1.Config) string {
	quote := func(words []string) string {
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		return strings.Join(quoted, " ")
	}
	cmd := c.Cmd
	if len(c.Entrypoint)+len(cmd) == 0 {
		cmd = []string{"/bin/sh"}
	}
	return fmt.Sprintf("cd %s || exit 1\n[ -s /etc/rc.local ] && . /etc/rc.local\n[ $# -gt 0 ] || set -- %s\nexec %s \"$@\"\n",
		quote([]string{cmp.Or(c.WorkingDir, "/")}), quote(cmd), quote(c.Entrypoint))
}

// newestEntry returns the newest time of the image's files. With it as SOURCE_DATE_EPOCH, sqfstar
// changes the time of none of them: Python compares the times of modules with those in byte code.
func newestEntry(ctx context.Context, image v1.Image) (time.Time, error) {
	newest := time.Unix(0, 0)
	files := flatten(image)
	defer files.Close()
	for r := tar.NewReader(wheel.NewContextReader(ctx, files)); ; {
		entry, err := r.Next()
		if errors.Is(err, io.EOF) {
			return newest, nil
		}
		if err != nil {
			return newest, err
		}
		if entry.ModTime.After(newest) {
			newest = entry.ModTime
		}
	}
}

// flatten returns the tar of the image's files.
func flatten(image v1.Image) io.ReadCloser { return mutate.Extract(image) }
