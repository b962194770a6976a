package compat

import (
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

// Every torch from 2.6 on and every Python of its own has a wheel with device code, with
// and without --target-glibc, for each of three common GPUs that it runs on.
func TestEveryPairHasAWheel(t *testing.T) {
	tt := tables(t)
	planned, pairs := 0, map[[2]string]bool{}
	for _, torch := range tt.Torches {
		if olderMinor(torch.Version, "2.6") {
			continue
		}
		for _, python := range torch.Pythons {
			if python == "3.9" || python == "3.15" { // the first is at its end, no base has the other
				continue
			}
			pairs[[2]string{firstTwo(torch.Version), python}] = true
			for gpu, arch := range map[string]string{"A100": "8.0", "RTX 5090": "12.0", "V100": "7.0"} {
				if !tt.torchRunsOn(torch, archOf(arch), wheel.X86) {
					continue
				}
				for _, glibc := range []string{"", "2.28", "2.34"} {
					if _, err := tt.Resolve(wheel.Request{GPUs: []string{gpu}, Torch: torch.Version, Python: python, Glibc: glibc}); err != nil {
						t.Errorf("torch %s, Python %s, %s, glibc %q: %v", torch.Version, python, gpu, glibc, err)
					}
					planned++
				}
			}
		}
	}
	if len(pairs) != 46 {
		t.Errorf("%d pairs of torch and Python", len(pairs))
	}
	t.Logf("%d plans", planned)
}
