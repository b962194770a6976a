package wheel

import "testing"

// Files of a wheel below site-packages, where purelib and platlib are the same folder. Whether data
// goes there depends on the Python of the environment.
func TestInstalledName(t *testing.T) {
	t.Parallel()
	const site = "lib/python3.11/site-packages"
	for _, c := range []struct{ name, site, want string }{
		{"deepspeed/a.py", site, "deepspeed/a.py"},
		{"top.data", site, "top.data"},
		{"deepspeed/x.data/purelib/y", site, "deepspeed/x.data/purelib/y"},
		{"deepspeed-0.19.8.data/purelib/deepspeed/a.py", site, "deepspeed/a.py"},
		{"deepspeed-0.19.8.data/platlib/x", "", "x"},
		{"deepspeed-0.19.8.data/scripts/ds", site, ""},
		{"deepspeed-0.19.8.data/headers/ds.h", site, ""},
		{"deepspeed-0.19.8.data/data/share/doc", site, ""},
		{"deepspeed-0.19.8.data/data/lib/python3.11/site-packages/x.pth", site, "x.pth"},
		{"deepspeed-0.19.8.data/data/lib/python3.9/site-packages/x.pth", site, ""},
		{"deepspeed-0.19.8.data/data/lib/python3.11/site-packages/x.pth", "", ""},
	} {
		if got, ok := installedName(c.name, c.site); ok != (c.want != "") || ok && got != c.want {
			t.Errorf("%s: %s, %v, want %s", c.name, got, ok, c.want)
		}
	}
}
