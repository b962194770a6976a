package progress

import (
	"testing"
	"time"
)

func TestRemaining(t *testing.T) {
	for _, c := range []struct {
		done, total float64
		want        string
	}{
		{10, 1700, ""}, {425, 1700, ", about 300 s more"}, {1700, 1700, ""}, {1800, 1700, ""}, {0, 0, ""},
	} {
		if got := Remaining(c.done, c.total, 100*time.Second); got != c.want {
			t.Errorf("%g of %g: %q", c.done, c.total, got)
		}
	}
}
