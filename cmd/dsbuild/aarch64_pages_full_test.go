//go:build full && linux

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/debian"
	"github.com/dsbuild/dsbuild/internal/testkit/fulltools"
)

// A machine of aarch64 whose kernel has pages of 64 KiB loads each op of a wheel for GH200, and the CPU optimizers compute what torch
// does. async_io writes there, too: qemu-user lacks the system calls for it, and this whole machine, which qemu emulates, has them.
func TestFullAarch64Pages(t *testing.T) {
	ops := armOps()
	w := build(t, "--ops", strings.Join(ops, ","), "--gpu", "GH200", "-o", t.TempDir())
	root := armRoot(t)
	// The folder of this test in the root file system, which the machine has over 9p.
	const inside = "/home/pages"
	outside := filepath.Join(root, inside)
	remove := func() {
		if err := os.RemoveAll(outside); err != nil {
			t.Error(err)
		}
	}
	remove()
	t.Cleanup(remove)
	command(t, ".", "python3", "-m", "zipfile", "-e", w.Path, filepath.Join(outside, "wheel"))
	for _, file := range []string{"testdata/aarch64/init.py", "../../pipeline/scripts/smoke.py", "../../pipeline/scripts/nogpu.py"} {
		text, err := os.ReadFile(file)
		if err := errors.Join(err, os.WriteFile(filepath.Join(outside, filepath.Base(file)), text, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	said := runMachine(t, root, append([]string{inside + "/init.py", inside + "/smoke.py"}, ops...))
	for _, want := range []string{
		"pages of 65536 bytes", "cpu_adam: one step equals torch's", "cpu_adagrad: one step equals", "cpu_lion: one step equals",
		"utils: tensors are unchanged", "async_io: wrote 4 MiB to a file and read them back", "8 ops work", "exit code 0",
	} {
		if !strings.Contains(said, want) {
			t.Fatalf("want %q of the machine:\n%s", want, said)
		}
	}
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "pages of") || strings.Contains(line, ": ") && strings.Contains(line, "_") && !strings.HasPrefix(line, "[") && !strings.HasPrefix(line, "Config") {
			t.Logf("result: under a kernel with pages of 64 KiB: %s", strings.TrimSpace(line))
		}
	}
	t.Logf("result: the machine ran for %.0f s", time.Since(start).Seconds())
}

// runMachine starts a machine of aarch64 with a Cortex-A72, whose first process is a program of Python in the root file system. It
// returns the output of the machine, which ends when the program switches it off.
func runMachine(t *testing.T, root string, program []string) string {
	t.Helper()
	have := debian.OnPath("qemu-system-aarch64", "flex", "bison", "bc", "make", "xz", "mkfs.ext4")
	if err := debian.Ensure(t.Context(), have, "qemu-system-arm", "flex", "bison", "bc", "make", "xz-utils", "e2fsprogs"); err != nil {
		t.Fatal(err)
	}
	kernel := filepath.Join(fulltools.Dir(t), "kernel64k")
	cmd := exec.CommandContext(t.Context(), "sh", "testdata/aarch64/kernel.sh", kernel)
	cmd.Env = append(os.Environ(), "CC=aarch64-linux-gnu-gcc-12")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	disk := filepath.Join(t.TempDir(), "disk")
	command(t, ".", "truncate", "-s", "128M", disk)
	command(t, ".", "mkfs.ext4", "-q", "-F", disk)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "qemu-system-aarch64", "-M", "virt", "-cpu", "cortex-a72", "-smp", "2", "-m", "4G", "-nographic", "-no-reboot", "-nic", "none",
		"-kernel", filepath.Join(kernel, "Image"),
		"-append", "console=ttyAMA0 quiet panic=-1 root=root ro rootfstype=9p rootflags=trans=virtio,version=9p2000.L,msize=512000,cache=loose init=/usr/bin/python3.11 -- "+strings.Join(program, " "),
		"-fsdev", "local,id=root,path="+root+",security_model=none,readonly=on", "-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
		"-drive", "if=none,id=disk,format=raw,file="+disk, "-device", "virtio-blk-pci,drive=disk").CombinedOutput()
	if err != nil {
		t.Fatalf("qemu: %v\n%s", err, out)
	}
	return strings.ReplaceAll(string(out), "\r", "")
}
