package wheel

import "testing"

func TestCompareVersions(t *testing.T) {
	for _, c := range []struct {
		a, b  string
		older bool
	}{
		{"0.9.30", "0.13.8", true},
		{"0.13.8", "0.13.8", false},
		{"0.13", "0.13.8", true},
		{"1.0.0", "0.13.8", false},
		{"", "0.1", true},
		{"9.0", "9.0a", true},
		{"2.9", "2.34", true},
		{"2.34", "2.9", false},
	} {
		if CompareVersions(c.a, c.b) < 0 != c.older {
			t.Errorf("%q before %q: %v", c.a, c.b, !c.older)
		}
	}
}
