package dockerfiles

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// nvccPy runs nvcc.py, which takes a package of the test's own for Debian's.
func nvccPy(t *testing.T, lines string, env ...string) (string, error) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", "import sys, nvcc\n"+lines)
	cmd.Dir = t.TempDir()
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + cmd.Dir, "PYTHONPATH=" + here, "PYTHONDONTWRITEBYTECODE=1"}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// debOf makes a package of a few files, as Debian's is made.
func debOf(t *testing.T, files map[string]string) (file, sum string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, "tree", name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sh", "-c", "ln -s /etc/passwd tree/usr/bin/link; echo 2.0 >debian-binary; tar -cJf data.tar.xz -C tree ./usr && tar -cJf control.tar.xz debian-binary && ar rc x.deb debian-binary control.tar.xz data.tar.xz")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "x.deb"))
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(text)
	return filepath.Join(dir, "x.deb"), hex.EncodeToString(digest[:])
}

func everyPlace() map[string]string {
	files := map[string]string{}
	for _, name := range strings.Fields("lib/nvidia-cuda-toolkit/bin/nvcc lib/nvidia-cuda-toolkit/bin/cicc lib/nvidia-cuda-toolkit/bin/crt/link.stub lib/nvidia-cuda-toolkit/libdevice/libdevice.10.bc bin/cudafe++ bin/fatbinary bin/ptxas bin/nvlink bin/bin2c bin/cuobjdump bin/other") {
		files["usr/"+name] = name
	}
	return files
}

// A CUDA root is made of the package, from a file, a mirror or the last build; a
// mirror without it, or with other bytes, is passed over.
func TestNvccPackage(t *testing.T) {
	file, sum := debOf(t, everyPlace())
	good := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/debian/pool/non-free/n/nvidia-cuda-toolkit/nvidia-cuda-toolkit_12.4.131~12.4.1-2_amd64.deb") {
			http.NotFound(w, r)
			return
		}
		http.ServeFile(w, r, file)
	}))
	defer good.Close()
	kept := filepath.Join(t.TempDir(), "kept")
	run := "nvcc.SHA256 = '" + sum + "'; sys.argv = ['nvcc.py', 'root']\nnvcc.main()" + `
import pathlib
print(*sorted(str(p.relative_to("root")) for p in pathlib.Path("root").rglob("*") if p.is_file()))
`
	const want = "bin/bin2c bin/crt/link.stub bin/cudafe++ bin/cuobjdump bin/fatbinary bin/fatbinary-12.4 bin/nvcc bin/nvcc-12.4 bin/nvcc.profile bin/nvlink bin/ptxas nvvm/bin/cicc nvvm/libdevice/libdevice.10.bc\n"
	for what, env := range map[string]string{"file": "DSBUILD_TOOLKIT_DEB=" + file, "mirror": "DSBUILD_APT_MIRROR=" + good.URL} {
		if out, err := nvccPy(t, run, env, "DSBUILD_DOWNLOADS="+kept); err != nil || out != want {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
	}
	if out, err := nvccPy(t, run, "DSBUILD_APT_MIRROR=http://127.0.0.1:1", "DSBUILD_DOWNLOADS="+kept); err != nil || out != want {
		t.Errorf("of the last build: %v\n%s", err, out)
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("other")) }))
	defer other.Close()
	empty := httptest.NewServer(http.NotFoundHandler())
	defer empty.Close()
	for mirror, why := range map[string]string{other.URL: "other bytes: sha256", empty.URL: "404"} {
		secret := strings.Replace(mirror, "//", "//user:secret@", 1)
		out, err := nvccPy(t, run, "DSBUILD_APT_MIRROR="+secret)
		if err == nil || !strings.Contains(out, why) || !strings.Contains(out, "--nvcc-deb takes the file") || strings.Contains(out, "secret") {
			t.Errorf("%s: %v\n%s", why, err, out)
		}
	}
}

// The root that build.sh makes has the headers of nvcc's version, those of torch's
// packages beside them, and none of the system's.
func TestNvccRoot(t *testing.T) {
	file, sum := debOf(t, everyPlace())
	dir := t.TempDir()
	_, context, err := Toolchain("x86_64")
	if err != nil {
		t.Fatal(err)
	}
	context[AllPackages] = "pip==1\nsetuptools==1\nwheel==1\n"
	context["nvcc.py"] = strings.Replace(context["nvcc.py"], NvccSHA256(), sum, 1)
	context["uv"] = `#!/bin/sh
for arg do case $before in --target) to=$arg ;; esac; before=$arg; done
[ -z "${to-}" ] || { mkdir -p "$to/nvidia/one/include/crt"; printf 'extern double %s(double x);\n' rsqrt sinpi >"$to/nvidia/one/include/crt/math_functions.h"; echo 12.4 >"$to/nvidia/one/include/both.h"; mkdir -p "$to/nvidia/cuda_nvcc/bin"; echo >"$to/nvidia/cuda_nvcc/bin/ptxas"; }
`
	for name, text := range context {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sh", "-c", `python3 -m venv --without-pip env
site=$(env/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/nvidia/blas/include" "$site/nvidia/blas/lib"
echo 12.8 >"$site/nvidia/blas/include/both.h"; echo >"$site/nvidia/blas/include/blas.h"; echo >"$site/nvidia/blas/lib/libblas.so.12"
sh build.sh toolkit && cd cuda && find include lib64 ! -type d | sort && cat include/both.h && grep ^extern include/crt/math_functions.h && g++ -fsyntax-only -x c++ include/crt/math_functions.h`)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "DSBUILD_ENV="+dir+"/env", "DSBUILD_CUDA="+dir+"/cuda", "CUDA_SOURCE=nvcc12", "TOOLKIT=12.4", "DSBUILD_SITE=/dev/null", "DSBUILD_TOOLKIT_DEB="+file)
	out, err := cmd.CombinedOutput()
	const want = "include/blas.h\ninclude/both.h\ninclude/crt/math_functions.h\nlib64/libblas.so\nlib64/libblas.so.12\n12.4\nextern double rsqrt(double x) DSBUILD_NOTHROW_RSQRT;\nextern double sinpi(double x) DSBUILD_NOTHROW_PI;\n"
	if err != nil || string(out) != want {
		t.Errorf("%v\n%s", err, out)
	}
}

// For GPUs that nvcc 12.4 does not know it makes PTX for 9.0, and fatbinary joins the
// machine code that a newer ptxas makes of it.
func TestNvccForNewerGPUs(t *testing.T) {
	dir := t.TempDir()
	text, err := nvccPy(t, "sys.stdout.write(nvcc.NVCC + chr(0) + nvcc.FATBINARY)")
	if err != nil {
		t.Fatal(err)
	}
	nvcc, fatbinary, _ := strings.Cut(text, "\x00")
	for name, script := range map[string]string{
		"nvcc": nvcc, "fatbinary": fatbinary, "ptxas-12.8": "#!/bin/sh\necho ptxas \"$@\"\n",
		"nvcc-12.4": "#!/bin/sh\necho nvcc \"$@\" newer ${DSBUILD_NEWER-} kept ${DSBUILD_KEEP_PTX-}\n", "fatbinary-12.4": "#!/bin/sh\necho fatbinary \"$@\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ command, env, want string }{
		{"nvcc -gencode=arch=compute_80,code=sm_80 -c x.cu", "", "nvcc -gencode=arch=compute_80,code=sm_80 -c x.cu newer kept"},
		{"nvcc -gencode arch=compute_90,code=sm_90 --dryrun", "", "nvcc -gencode=arch=compute_90,code=sm_90 --dryrun newer kept"},
		{"nvcc -gencode=arch=compute_80,code=sm_80 -gencode arch=compute_120,code=sm_120 -gencode=arch=compute_100,code=sm_100 -c x.cu", "", "nvcc -gencode=arch=compute_80,code=sm_80 -c x.cu -gencode=arch=compute_90,code=compute_90 newer 120 100 kept"},
		{"nvcc -gencode=arch=compute_90,code=compute_90 -gencode=arch=compute_120,code=sm_120", "", "nvcc -gencode=arch=compute_90,code=compute_90 newer 120 kept yes"},
		{"nvcc -gencode=arch=compute_120,code=sm_120 --dryrun", "", "nvcc: no list of steps for 120: they are not nvcc's own alone"},
		{"fatbinary --create=x --image3=kind=ptx,sm=90,file=x.ptx", "", "fatbinary --create=x --image3=kind=ptx,sm=90,file=x.ptx"},
		{"fatbinary --image3=kind=elf,sm=80,file=a --image3=kind=ptx,sm=90,file=x.ptx -64", "DSBUILD_NEWER= 120", "ptxas -m64 --gpu-name=sm_120 x.ptx -o x.ptx.sm_120.cubin\nfatbinary --image3=kind=elf,sm=80,file=a --image3=kind=elf,sm=120,file=x.ptx.sm_120.cubin -64"},
	} {
		words := strings.Fields(c.command)
		cmd := exec.Command(filepath.Join(dir, words[0]), words[1:]...)
		cmd.Env = append(os.Environ(), c.env)
		if out, _ := cmd.CombinedOutput(); strings.TrimSpace(string(out)) != c.want {
			t.Errorf("%s:\n%swant\n%s", c.command, out, c.want)
		}
	}
}

// The mirrors are those of the site, or those that apt knows and Debian's own.
func TestNvccMirrors(t *testing.T) {
	const lines = `
import pathlib
texts = {"/etc/apt/sources.list": "# deb http://no.example/debian x\ndeb [arch=amd64 signed-by=/x] https://a.example/sub/debian/ trixie main\ndeb http://b.example/ubuntu noble main\n",
         "/etc/apt/sources.list.d/c.sources": "Types: deb\nURIs: http://c.example/debian http://c.example/debian-security\n"}
pathlib.Path.read_text = lambda self, **how: texts[str(self)]
pathlib.Path.glob = lambda self, pattern: [pathlib.Path("/etc/apt/sources.list.d/c.sources")]
print(*nvcc.mirrors())
`
	out, err := nvccPy(t, lines)
	if want := "https://a.example/sub/debian http://c.example/debian http://deb.debian.org/debian\n"; err != nil || out != want {
		t.Errorf("%v: %s", err, out)
	}
	out, err = nvccPy(t, lines, "DSBUILD_APT_MIRROR=https://m.example/apt/")
	if want := "https://m.example/apt/debian\n"; err != nil || out != want {
		t.Errorf("%v: %s", err, out)
	}
}

func TestNvccSHA256(t *testing.T) {
	if len(NvccSHA256()) != 64 {
		t.Errorf("%q", NvccSHA256())
	}
}
