package deploy

import (
	"slices"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/wheel"
)

func TestUnmetRequirements(t *testing.T) {
	t.Parallel()
	f := node.Facts{Python: "3.11.2", Platform: "linux_x86_64", Dists: map[string]string{
		"torch": "2.15.0+cu132", "pydantic": "1.10.2", "py-cpuinfo": "9.0", "numpy": "2.0.0rc1", "packaging": "24.1",
	}}
	for requirement, want := range map[string]string{
		"torch>=2.0.0":           "",
		"torch==2.15.*":          "",
		"torch~=2.15.0":          "",
		"torch==2.15.0+cu128":    "torch==2.15.0+cu128 (this node has 2.15.0+cu132)",
		"pydantic>=2.0.0":        "pydantic>=2.0.0 (this node has 1.10.2)",
		"py_cpuinfo":             "",
		"Py.Cpuinfo":             "",
		"hjson":                  "hjson",
		"numpy>=1.26":            "",
		"packaging===24.1":       "",
		"sphinx; extra == 'doc'": "",
		"sphinx>=1; python_version < '3.8' and extra == 'doc'":                                  "",
		"tomli; python_version < '3.11'":                                                        "",
		"wheelx; python_version >= '3.9'":                                                       "wheelx",
		"winx; sys_platform == \"win32\" or (os_name == 'nt' and platform_machine in 'x86_64')": "",
		"linx; platform_machine == 'x86_64' and platform_system != 'Windows'":                   "linx",
		"here @ https://example.org/here-1.0-py3-none-any.whl":                                  "here@ https://example.org/here-1.0-py3-none-any.whl",
	} {
		_, lacks, err := chooseExtraWheels(nil, wheel.Loaded{Requires: []string{requirement}}, f, nil, false)
		got := reasonsOf(lacks)
		if err != nil {
			t.Errorf("%s: %v", requirement, err)
			continue
		}
		wanted := []string{}
		if want != "" {
			wanted = []string{want}
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("%s: %q, want %q", requirement, got, wanted)
		}
	}
	for _, bad := range []string{
		"x; colour == 'red'", "x; os_name ~ 'a'", "x; (os_name == 'posix'", "x; os_name == 'posix' or",
	} {
		if _, _, err := chooseExtraWheels(nil, wheel.Loaded{Requires: []string{bad}}, f, nil, false); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func FuzzMarker(f *testing.F) {
	f.Add("python_version < '3.8' and (extra == 'doc' or os_name in \"posix\")")
	f.Fuzz(func(_ *testing.T, text string) {
		markerHolds(text, node.Facts{Python: "3.11.2"}, "") //nolint:errcheck // it must only not panic
	})
}
