package daggerbuilder

import "testing"

func TestFreeOf(t *testing.T) {
	free, err := freeOf("Filesystem 1024-blocks Used Available Capacity Mounted on\noverlay 263174212 44814012 207000000 18% /\n")
	if err != nil || free != 207000000<<10 {
		t.Errorf("%d, %v", free, err)
	}
	for _, wrong := range []string{"", "df: not found", "Filesystem\noverlay x y z 1% /"} {
		if free, err := freeOf(wrong); err == nil {
			t.Errorf("%q: %d", wrong, free)
		}
	}
}

// An engine that is not of dsbuild's own kind tells what it has free.
func TestRealEngineTellsItsSpace(t *testing.T) {
	b, tar := connect(t)
	if tar == "" {
		t.Skip("needs the base of dsbuild's own engine")
	}
	p := tiny(t, "4", tar, "true", "true")
	if rooms := b.DiskRequirements(t.Context(), p); len(rooms) != 1 || rooms[0].Free != nil {
		t.Errorf("its own engine: %+v", rooms)
	}
	other := *b
	other.engine.Address = "tcp://elsewhere:1"
	rooms := other.DiskRequirements(t.Context(), p)
	free, err := rooms[0].Free()
	if err != nil || free < 1<<20 {
		t.Errorf("%d, %v", free, err)
	}
}
