package image_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/release/image"
	"github.com/dsbuild/dsbuild/wheel"
)

// machine is a machine, as wheels and images name it.
type machine struct {
	name, architecture string
	cpu                wheel.CPULevel
}

func bothMachines() []machine {
	return []machine{{wheel.X86, "amd64", wheel.CPUv3}, {wheel.Arm, "arm64", wheel.CPUArm}}
}

// base is a base with torch for the machine.
func (m machine) base(t *testing.T) v1.Image {
	t.Helper()
	files := map[string]string{}
	for path, text := range torchBase() {
		files[strings.ReplaceAll(path, wheel.X86, m.name)] = text
	}
	img := baseOf(t, v1.Config{}, files)
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.Architecture = m.architecture
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

// options are those for a wheel for the machine, without a base and an output.
func (m machine) options(t *testing.T) image.Options {
	t.Helper()
	opt := options(t, "", "")
	opt.Wheels = load(t, wheeltest.Packed(t, t.TempDir(), wheeltest.Options{CPU: m.cpu}))
	return opt
}

// index has the bases of both machines.
func index(t *testing.T) v1.ImageIndex {
	t.Helper()
	var all v1.ImageIndex = empty.Index
	for _, m := range bothMachines() {
		all = mutate.AppendManifests(all, mutate.IndexAddendum{Add: m.base(t), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: m.architecture}}})
	}
	return all
}

// A wheel for each machine goes on the base of that machine, alone or in an index, on disk or in a registry. The image is for that
// machine.
func TestImageOfEachMachine(t *testing.T) {
	h := newHub(t)
	ref, err := name.ParseReference(h.host + "/both:1")
	if err == nil {
		err = remote.WriteIndex(ref, index(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := layout.Write(dir, index(t)); err != nil {
		t.Fatal(err)
	}
	for _, m := range bothMachines() {
		opt := m.options(t)
		opt.Force = true
		for form, base := range map[string]string{
			"a tar": saved(t, m.base(t)), "a layout of both": dir, "an image": h.put(t, m.architecture+":1", m.base(t)), "an index of both": ref.Name(),
		} {
			file := filepath.Join(t.TempDir(), "out.tar")
			opt.Base, opt.Output = base, file
			r := mustBuild(t, opt)
			if want := "linux/" + m.architecture; r.Base.Platform != want {
				t.Errorf("%s of %s: the base is %s, want %s", form, m.name, r.Base.Platform, want)
			}
			opt.Output = h.host + "/out:1"
			mustBuild(t, opt)
			for where, made := range map[string]v1.Image{"tar": opened(t, file), "registry": h.pull(t, "out:1")} {
				config, err := made.ConfigFile()
				if err != nil || config.OS != "linux" || config.Architecture != m.architecture {
					t.Errorf("%s of %s: the image in the %s is for %s/%s (%v), want linux/%s", form, m.name, where, config.OS, config.Architecture, err, m.architecture)
				}
				if wheel := config.Config.Labels["dsbuild.wheel"]; !strings.HasSuffix(wheel, "_"+m.name+".whl") {
					t.Errorf("%s of %s: the image in the %s has %s", form, m.name, where, wheel)
				}
			}
		}
	}
}

// A base of the other machine, and a companion for the other machine, are refused in one line with a hint; nothing is written.
func TestOtherMachineIsRefused(t *testing.T) {
	h := newHub(t)
	both := bothMachines()
	for i, m := range both {
		other, opt := both[1-i], m.options(t)
		main := opt.Wheels[0].Path
		alone := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: other.base(t), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: other.architecture}}})
		dir := t.TempDir()
		if _, err := layout.Write(dir, alone); err != nil {
			t.Fatal(err)
		}
		fast := filepath.Join(t.TempDir(), "fast-1-cp311-cp311-linux_"+other.name+".whl")
		info := "fast-1.dist-info/"
		wheeltest.Write(t, fast, map[string]string{
			"fast/__init__.py": "", info + "METADATA": "Metadata-Version: 2.1\nName: fast\nVersion: 1\n",
			info + "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_" + other.name + "\n",
		})
		differ := "does not fit BASE: the wheel is for linux/" + m.architecture + ", the base for linux/" + other.architecture
		for _, c := range []struct {
			form, base, companion string
			code                  int
			want, hint            string
		}{
			{"a tar", saved(t, other.base(t)), "", 4, differ, "take a base for linux/" + m.architecture + ", or a wheel for linux/" + other.architecture},
			{"an image", h.put(t, other.architecture+":1", other.base(t)), "", 4, differ, "take a base for linux/" + m.architecture},
			{"a layout", dir, "", 2, "it has no image for linux/" + m.architecture + ", which the wheel needs, only for linux/" + other.architecture, "build a wheel"},
			{"a companion", saved(t, m.base(t)), fast, 4, filepath.Base(fast) + " does not fit BASE: the base is linux/" + m.architecture + " with Python 3.11 and glibc 2.36", "leave it out"},
		} {
			out := filepath.Join(t.TempDir(), "out.tar")
			opt.Base, opt.Output = c.base, out
			if c.companion != "" {
				opt.Wheels = load(t, main, c.companion)
			}
			_, err := build(t, opt)
			want := strings.ReplaceAll(c.want, "BASE", c.base)
			if fault.ExitCode(err) != c.code || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || !strings.Contains(fault.Hint(err), c.hint) {
				t.Errorf("%s for %s: %v, hint %q; want %q, hint %q, exit code %d", c.form, m.name, err, fault.Hint(err), want, c.hint, c.code)
			}
			if _, err := os.Stat(out); err == nil {
				t.Errorf("%s for %s: it is written", c.form, m.name)
			}
		}
	}
}
