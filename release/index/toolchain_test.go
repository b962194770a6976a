package index

import (
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

// The index of a wheel has the name of its targets.
func TestToolchainOf(t *testing.T) {
	for version, want := range map[string]string{
		"0.19.8+torch2.10.cu13.v3":                         "torch2.10-cu13-v3",
		"0.19.8+torch2.10.cu13.all.v3":                     "torch2.10-cu13-all-v3",
		"0.19.8+torch2.10.cu13.all.armv8a":                 "torch2.10-cu13-all-armv8a",
		"0.19.8+torch2.15.cu132.sm80.sm90.ptx90.v3":        "torch2.15-cu132-sm80-sm90-ptx90-v3",
		"0.19.9+g1a2b3c4.s5d6e7f8.torch2.15.cu132.sm80.v2": "torch2.15-cu132-sm80-v2-dev",
		"0.19.8+torch2.10.cu13.all.sm80.v3":                "",
		"0.19.8+cu130":                                     "",
		"0.19.8":                                           "",
	} {
		tc, err := toolchainOf(wheel.Manifest{Name: "w.whl", Version: version})
		if tc.Name != want || (err == nil) != (want != "") {
			t.Errorf("%s: index %q, %v; want %q", version, tc.Name, err, want)
		}
	}
}
