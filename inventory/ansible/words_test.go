package ansible_test

import (
	"slices"
	"testing"

	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// Words are those of Python's shlex.split, which Ansible uses.
func TestSplitWords(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"": nil, " \t\n": nil, "a  b\tc\nd": {"a", "b", "c", "d"}, `''`: {""}, `a''b`: {"ab"},
		`-o ProxyCommand="ssh -i key -W %h:%p user@jump" -C`: {"-o", "ProxyCommand=ssh -i key -W %h:%p user@jump", "-C"},
		`'a "b" \c' x`:            {`a "b" \c`, "x"},
		`"a 'b' \" \\ \c $x"`:     {`a 'b' " \ \c $x`},
		`a\ b \' \"`:              {"a b", "'", `"`},
		"a # no comment ; | > $(": {"a", "#", "no", "comment", ";", "|", ">", "$("},
		"ä 'ö ü'":                 {"ä", "ö ü"},
	} {
		if got, err := ansible.SplitWords(line); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v; want %q", line, got, err, want)
		}
	}
	for _, line := range []string{`'`, `a "b`, `a\`, `"\"`} {
		if got, err := ansible.SplitWords(line); err == nil {
			t.Errorf("%s: got %q, want an error for what has no end", line, got)
		}
	}
}
