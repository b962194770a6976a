package wheel

import (
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
)

func TestParseArchs(t *testing.T) {
	for _, c := range []struct {
		in   []string
		want string
	}{
		{[]string{"8.0"}, "8.0"},
		{[]string{"8.0;8.6+PTX"}, "8.0;8.6+PTX"},
		{[]string{"9.0", "8.0"}, "8.0;9.0"},
		{[]string{"12.0", "8.0 ; 9.0"}, "8.0;9.0;12.0"},
		{[]string{"8.0", "8.0+PTX", "8.0"}, "8.0+PTX"},
		{[]string{"8.0+PTX", "8.0"}, "8.0+PTX"},
		{nil, ""},
	} {
		archs, err := ParseArchs(c.in)
		if err != nil || ArchList(archs) != c.want {
			t.Errorf("ParseArchs(%q) = %q, %v; want %q", c.in, ArchList(archs), err, c.want)
		}
	}
}

func TestParseArchsRefuses(t *testing.T) {
	for in, why := range map[string]string{
		"":          "empty entry",
		"8.0;":      "empty entry",
		"8.0,8.6":   "entries must be separated",
		"8.0 8.6":   "entries must be separated",
		"9.0a":      "suffix",
		"Ampere":    "not a compute capability",
		"80":        "use 8.0",
		"sm_80":     "use 8.0",
		"sm120":     "use 12.0",
		"8.0+ptx":   "use 8.0+PTX",
		"sm_90a":    "no arch-specific suffix (a, f): use 9.0",
		"86-real":   "use 8.6",
		"800":       "not a compute capability",
		"8.0.0":     "not a compute capability",
		"8.0\n":     "", // surrounding space is no mistake
		"١.٠":       "not a compute capability",
		"8.0+PTX+P": "not a compute capability",
	} {
		_, err := ParseArchs([]string{in})
		if why == "" {
			if err != nil {
				t.Errorf("ParseArchs(%q): %v", in, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), why) || fault.ExitCode(err) != 2 {
			t.Errorf("ParseArchs(%q): %v, want %q", in, err, why)
		}
	}
}

// Archs are in the order of their numbers, those with a suffix behind their own number.
func TestArchsInOrder(t *testing.T) {
	if got := sortedArchs([]string{"10.3", "9.0a", "10.0a", "9.0", "10.0", "12.0"}); strings.Join(got, " ") != "9.0 9.0a 10.0 10.0a 10.3 12.0" {
		t.Errorf("%q", got)
	}
}

// What is read must be what DeepSpeed is given, whatever the input was.
func FuzzParseArchs(f *testing.F) {
	for _, s := range []string{"8.0", "8.0;8.6+PTX", "9.0a", ";", "8.0 ; 9.0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		archs, err := ParseArchs([]string{s})
		if err != nil {
			return
		}
		again, err := ParseArchs([]string{ArchList(archs)})
		if err != nil || ArchList(again) != ArchList(archs) {
			t.Fatalf("%q read as %q, and that as %q, %v", s, ArchList(archs), ArchList(again), err)
		}
	})
}

func TestLocalVersion(t *testing.T) {
	archs, _ := ParseArchs([]string{"8.0;8.6;9.0+PTX"})
	for _, c := range []struct {
		archs    []Arch
		everyGPU bool
		want     string
	}{
		{archs, false, "torch2.15.cu132.sm80.sm86.sm90.ptx90.v3"},
		{archs, true, "torch2.15.cu132.all.v3"},
		{nil, false, "torch2.15.cu132.v3"},
		{nil, true, "torch2.15.cu132.v3"},
	} {
		if got := LocalVersion("2.15.0", "13.2", c.archs, c.everyGPU, CPUv3); got != c.want {
			t.Errorf("LocalVersion(archs %v, every GPU %v) = %s, want %s", c.archs, c.everyGPU, got, c.want)
		}
	}
}

func TestCPULevelIncludes(t *testing.T) {
	for _, c := range []struct {
		l, other CPULevel
		want     bool
	}{
		{CPUv3, CPUv3, true},
		{CPUv3, CPUv2, true},
		{CPUv3, CPUv4, false},
		{CPUv4, CPUv2, true},
		{"", CPUv2, false},
		{CPUv3, "", false},
		{"", "", false},
		{CPUArm, CPUArm, true},
		{CPUArm, CPUv1, false},
		{CPUv4, CPUArm, false},
	} {
		if got := c.l.Includes(c.other); got != c.want {
			t.Errorf("%q.Includes(%q) = %v", c.l, c.other, got)
		}
	}
}
