package wheel_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// A wheel for aarch64 gets the tag and the manifest of its machine. The audit finds an op that not every such machine can load.
func TestArmWheel(t *testing.T) {
	file := wheeltest.Packed(t, t.TempDir(), wheeltest.Options{CPU: wheel.CPUArm})
	if name := filepath.Base(file); name != "deepspeed-0.19.8+torch2.15.cu132.sm80.armv8a-cp311-cp311-manylinux_2_17_aarch64.whl" {
		t.Error(name)
	}
	v, err := wheel.Verify(t.Context(), file)
	if err != nil || len(v.Findings()) > 0 {
		t.Fatal(err, v.Findings())
	}
	if v.Manifest.CPU != "armv8-a" || v.Contents.CPU() != wheel.CPUArm || v.Contents.Machine() != wheel.Arm {
		t.Error(v.Manifest.CPU, v.Contents.CPU(), v.Contents.Machine())
	}
	asked := wheel.Want{
		Ops: []string{"cpu_adam", "fused_adam"}, Archs: map[string][]wheel.Arch{"fused_adam": {{Major: 8}}}, CPU: wheel.CPUArm, Glibc: "2.28",
	}
	if found := wheel.Audit(v.Contents, asked); len(found) > 0 {
		t.Error(found)
	}
	asked.CPU = wheel.CPUv3
	if found := wheel.Audit(v.Contents, asked); len(found) != 2 || found[0] != "op cpu_adam has code for aarch64, requested at most x86-64-v3" {
		t.Error(found)
	}
	files := wheeltest.Read(t, file)
	adam := wheeltest.Member(t, files, "cpu_adam_op.cpython-311-aarch64-linux-gnu.so")
	for want, change := range map[string]func([]byte){
		"op cpu_adam is aligned to pages of 4096 bytes, but Arm kernels can have pages of 65536": func(object []byte) {
			object[64+48], object[64+48+1], object[64+48+2] = 0, 16, 0 // p_align of the first segment
		},
		"op cpu_adam has instructions outside all CPU levels: sve": func(object []byte) {
			at := strings.Index(string(object), "\x20\xcc\x22\x4e")
			copy(object[at:], "\x20\x00\x82\x65") // fadd z0.s, z1.s, z2.s
		},
	} {
		object := []byte(files[adam])
		change(object)
		other := filepath.Join(t.TempDir(), filepath.Base(file))
		changed := map[string]string{}
		for name, text := range files {
			changed[name] = text
		}
		changed[adam] = string(object)
		wheeltest.Write(t, other, changed)
		v, err := wheel.Verify(t.Context(), other)
		if err != nil || !slices.ContainsFunc(v.Findings(), func(f string) bool { return strings.Contains(f, want) }) {
			t.Errorf("%v: %q, want %q", err, v.Findings(), want)
		}
	}
}
