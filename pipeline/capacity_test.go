package pipeline

import "testing"

func TestBuildsAtOnce(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		cores  int
		memory int64
		want   int
	}{
		{1, 2 * gib, 1}, {2, 23 * gib, 1}, {8, 64 * gib, 2}, {64, 32 * gib, 4}, {64, 512 * gib, 16}, {16, 0, 4},
	} {
		if got := buildsAtOnce(c.cores, c.memory); got != c.want {
			t.Errorf("%d cores, %d bytes: %d builds, want %d", c.cores, c.memory, got, c.want)
		}
	}
	if n := memory(); n < gib/4 {
		t.Errorf("this machine has %d bytes", n)
	}
}
