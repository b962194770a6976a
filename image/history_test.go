package image

import (
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// The history of an image tells the versions that an installer was told. It tells nothing where a
// version is a variable, or where another command only speaks of torch.
func TestFactsOfHistory(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"RUN pip install torch==2.3.0":                                             "torch 2.3.0",
		"RUN pip install torch==2.3.0+cu121 --index-url https://host/whl":          "torch 2.3.0+cu121, cuda 12.1",
		`RUN pip install "torch==2.3.0+cpu" 'deepspeed==0.17.0'`:                   "torch 2.3.0+cpu, cuda none, deepspeed 0.17.0",
		"RUN pip install torch==2.1.*":                                             "torch 2.1",
		"RUN pip install torch==2.1.* && pip install torch==2.1.2":                 "torch 2.1.2",
		"RUN pip install torch==2.1.* && pip install torch==2.3.0":                 "",
		"RUN pip install torchvision==0.18.0 pytorch==2.3.0 my-torch==1.0.0":       "",
		"RUN pip install torch==${TORCH_VERSION}":                                  "",
		"RUN pip install torch==2":                                                 "",
		"RUN echo torch==2.3.0":                                                    "",
		"RUN pip install torch>=2.3.0":                                             "",
		"RUN pip install torch==2.3.0rc1.post1":                                    "torch 2.3.0rc1.post1",
		"# debian.sh --arch 'amd64' out/ 'bookworm' '@1729468800'":                 "glibc 2.36",
		"# debian.sh --arch 'amd64' out/ 'nosuch' '@1729468800'":                   "",
		"RUN pip install torch==2.3.0 deepspeed==0.1.0\x1b[2J":                     "torch 2.3.0, deepspeed 0.1.0",
		"RUN pip install torch==" + strings.Repeat("1", 3000) + "." + "2":          "",
		"RUN apt-get install deepspeed==0.17.0.*; echo # torch==9.9.9 is too new?": "torch 9.9.9, deepspeed 0.17.0",
	} {
		c := &v1.ConfigFile{History: []v1.History{{CreatedBy: "COPY . /"}, {CreatedBy: command}}}
		var got []string
		for _, f := range factsOfConfig(c, func(image string) string { return map[string]string{"debian:bookworm": "2.36"}[image] }).list() {
			got = append(got, f.Name+" "+f.Value)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%.100q: %q, want %q", command, got, want)
		}
	}
}

// One layer cannot have a file and a folder of one name.
func TestFileAndFolderOfTwoWheels(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var all []*installation
	for name, module := range map[string]string{"one": "tool", "two": "tool/deep/__init__.py"} {
		file := filepath.Join(dir, name+"-1.0-py3-none-any.whl")
		wheeltest.Write(t, file, map[string]string{
			module:                           "x = 1\n",
			name + "-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n",
			name + "-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		})
		a, err := wheel.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		i, err := installWheel(a, target{site: "/site", prefix: "/", python: "/bin/python3"})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, i)
	}
	if _, err := combine(all[:1]); err != nil {
		t.Error(err)
	}
	if _, err := combine(all); err == nil || err.Error() != "/site/tool is a file of one, and a folder of another wheel" {
		t.Error(err)
	}
}
