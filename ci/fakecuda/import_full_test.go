//go:build full

package fakecuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Where torch sees a GPU and nobody has a CUDA toolkit, DeepSpeed before 0.19.5 cannot be imported; with the patch that
// dsbuild's builds of these releases have, it can.
func TestFullStableImportWithoutToolkit(t *testing.T) {
	if _, err := os.Stat("/usr/local/cuda"); err == nil {
		t.Skip("this machine has a CUDA toolkit where torch looks for one")
	}
	e := newEnvironment(t, cuda13(), cuda13().torch, "pip==25.2", "setuptools==80.9.0", "hjson==3.1.0", "packaging==25.0", "psutil==7.0.0", "einops==0.8.1",
		"pydantic==2.12.5", "tqdm==4.67.1", "py-cpuinfo==9.0.0", "ninja==1.13.0", "msgpack==1.1.2", "nvidia-ml-py==13.580.65")
	dir := t.TempDir()
	must := func(folder string, argv ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	must(dir, e.python, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "deepspeed==0.19.4")
	must(dir, "tar", "-xzf", "deepspeed-0.19.4.tar.gz")
	sources := filepath.Join(dir, "deepspeed-0.19.4")
	preload := []string{}
	for _, name := range []string{"libcuda.so.1", "libcudart.so.13"} {
		preload = append(preload, filepath.Join(e.libraries, name))
	}
	imports := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), e.python, "-B", "-c", "import torch, deepspeed; print('sees', torch.cuda.device_count(), deepspeed.__version__)")
		cmd.Dir = sources
		cmd.Env = []string{
			"PATH=/usr/bin:/bin", "HOME=" + dir, "LD_PRELOAD=" + strings.Join(preload, ":"), "LD_LIBRARY_PATH=" + e.libraries,
			"FAKECUDA_DEVICES=2", "FAKECUDA_RECORD=" + filepath.Join(dir, "record"), "FAKECUDA_KERNELS=/dev/null",
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := imports(); err == nil || !strings.Contains(out, "MissingCUDAException: CUDA_HOME does not exist") {
		t.Fatalf("without the patch: %v, %s; want MissingCUDAException", err, out)
	}
	patch, err := filepath.Abs("../../pipeline/scripts/patches/import_check.patch")
	if err != nil {
		t.Fatal(err)
	}
	must(sources, "patch", "-p1", "-s", "-i", patch)
	if out, err := imports(); err != nil || !strings.Contains(out, "sees 2 0.19.4") {
		t.Errorf("with the patch: %v, %s", err, out)
	}
}
