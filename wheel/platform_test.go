package wheel

import "testing"

func TestPlatform(t *testing.T) {
	for _, c := range []struct {
		floors Floors
		want   string
	}{
		{Floors{}, "manylinux_2_5_x86_64"},
		{Floors{Glibc: "2.2.5"}, "manylinux_2_5_x86_64"},
		{Floors{Glibc: "2.14"}, "manylinux_2_17_x86_64"},
		{Floors{Glibc: "2.34"}, "manylinux_2_34_x86_64"},
		{Floors{Glibc: "2.34", GLIBCXX: "3.4.30"}, "manylinux_2_35_x86_64"},
		{Floors{Glibc: "2.17", CXXABI: "1.3.13"}, "manylinux_2_34_x86_64"},
		{Floors{Glibc: "2.17", Libgcc: "12.0.0"}, "manylinux_2_35_x86_64"},
		{Floors{Glibc: "2.41"}, "manylinux_2_41_x86_64"},
		{Floors{Glibc: "2.50", GLIBCXX: "3.4.33"}, "manylinux_2_50_x86_64"}, // newer than the table
	} {
		if got, err := Platform(c.floors, X86); got != c.want || err != nil {
			t.Errorf("%+v: %s, %v, want %s", c.floors, got, err, c.want)
		}
	}
	for floors, want := range map[Floors]string{ // 2.17 is the first glibc for 64-bit Arm
		{Glibc: "2.17"}:                    "manylinux_2_17_aarch64",
		{Glibc: "2.17", GLIBCXX: "3.4.24"}: "manylinux_2_26_aarch64",
		{Glibc: "2.17", Libgcc: "11.0"}:    "manylinux_2_34_aarch64",
		{Glibc: "2.50", CXXABI: "1.3.15"}:  "manylinux_2_50_aarch64",
		PlatformFloors("2.28", Arm):        "manylinux_2_28_aarch64",
	} {
		if got, err := Platform(floors, Arm); got != want || err != nil {
			t.Errorf("aarch64 %+v: %s, %v, want %s", floors, got, err, want)
		}
	}
	if got, err := Platform(Floors{}, "ppc64le"); err == nil {
		t.Errorf("a machine without policies: %s", got)
	}
	for _, f := range []Floors{{Glibc: "9.9"}, {Glibc: "2.50", GLIBCXX: "3.4.99"}, {GLIBCXX: "3.5"}} {
		if got, err := Platform(f, X86); err == nil {
			t.Errorf("%+v: %s", f, got)
		}
	}
}

func TestPlatformGlibc(t *testing.T) {
	for tag, want := range map[string]string{
		"manylinux_2_35_x86_64": "2.35", "manylinux1_x86_64": "2.5", "manylinux2014_aarch64": "2.17",
		"linux_x86_64": "", "any": "", "musllinux_1_2_x86_64": "",
	} {
		if got, _ := SplitPlatform(tag); got != want {
			t.Errorf("%s: %q, want %q", tag, got, want)
		}
	}
}

// Symbol versions that no policy knows are newer than what an old tag promises.
func TestPromise(t *testing.T) {
	for floors, want := range map[Floors]bool{
		{Glibc: "2.17"}:                    true,
		{Glibc: "2.17", Libgcc: "12.0.0"}:  false,
		{Glibc: "2.17", GLIBCXX: "3.4.99"}: false,
		{Glibc: "2.99"}:                    false,
	} {
		c := Contents{Tags: []string{"py2-none-manylinux2014_x86_64", "py3-none-manylinux2014_x86_64", "py3-none-any"}}
		c.Extensions = []Extension{{Machine: X86, Floors: floors}}
		if damage := c.checkPromise(); len(damage) == 0 != want || len(damage) > 1 {
			t.Errorf("%+v: %q", floors, damage)
		}
	}
}

// The platform in a wheel's name decides where pip installs it, if it promises more than the code needs.
func TestInstallableGlibc(t *testing.T) {
	for platform, want := range map[string]string{
		"linux_x86_64":                                     "2.17",
		"manylinux2014_x86_64":                             "2.17",
		"manylinux_2_5_x86_64":                             "2.17",
		"manylinux_2_24_x86_64":                            "2.24",
		"manylinux_2_24_x86_64.manylinux_2_28_x86_64":      "2.24",
		"manylinux_2_17_x86_64.manylinux2014_x86_64":       "2.17",
		"manylinux_2_100_x86_64.manylinux_2_28_something9": "2.28",
	} {
		name := "deepspeed-0.19.8-cp311-cp311-" + platform + ".whl"
		if got := MinGlibcForInstall(name, "2.17"); got != want {
			t.Errorf("%s, whose code needs 2.17: %s, want %s", platform, got, want)
		}
	}
}
