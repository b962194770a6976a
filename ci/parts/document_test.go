package parts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	begin = "<!-- results -->\n"
	end   = "<!-- end -->\n"
)

func TestSave(t *testing.T) {
	d := Document{filepath.Join(t.TempDir(), "testing.md"), begin, end, []string{"inside", "speed"}}
	const head, foot = "# Testing\n\n### inside\n\nis a title here too\n\n", "\nThe end.\n"
	const section, later = "### inside\n\nnew\n", "### speed\n\nas it was\n\n| a | b |\n"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(d.File, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want string) {
		t.Helper()
		got, err := os.ReadFile(d.File)
		if err != nil || string(got) != want {
			t.Errorf("%v, got\n%s", err, got)
		}
	}
	write(head + begin + end + foot)
	for range 2 { // the second time it replaces its own
		if err := d.Save("inside", section); err != nil {
			t.Fatal(err)
		}
		check(head + begin + "\n" + section + "\n" + end + foot)
	}
	// A section from another time stays in its place.
	write(head + begin + "\n" + later + "\n### inside\n\nold\n\n" + end + foot)
	if err := d.Save("inside", section); err != nil {
		t.Fatal(err)
	}
	check(head + begin + "\n" + section + "\n" + later + "\n" + end + foot)
	left, err := os.ReadDir(filepath.Dir(d.File))
	if err != nil || len(left) != 1 {
		t.Errorf("%v, left behind: %v", err, left)
	}
}

func TestCheckNeedsTheMarks(t *testing.T) {
	d := Document{filepath.Join(t.TempDir(), "testing.md"), begin, end, nil}
	if err := d.Check(); err == nil {
		t.Error("no file is fine")
	}
	for _, text := range []string{"", begin, end, end + begin, begin + begin + end} {
		if err := os.WriteFile(d.File, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := d.Check(); err == nil || !strings.Contains(err.Error(), "testing.md") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
