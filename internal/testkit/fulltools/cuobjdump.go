package fulltools

import (
	"bytes"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// DeviceCode returns the archs of a file's device code as the first of these programs cuobjdump
// that can read the file finds them, such as 8.0 and 9.0a in the order of text: the SASS of what
// is linked, and all PTX.
func DeviceCode(tb testing.TB, file string, cuobjdump ...string) (sass, ptx []string) {
	tb.Helper()
	var says []byte
	for _, program := range cuobjdump {
		linked, err := exec.Command(program, "-ptx", file).CombinedOutput()
		if bytes.Contains(linked, []byte("does not contain device code")) {
			return nil, nil
		}
		// Without cubins that it knows, a program still prints their headers.
		if err != nil || len(archsOf(linked, "elf")) > 0 && exec.Command(program, "--list-elf", file).Run() != nil {
			says = linked
			continue
		}
		all, err := exec.Command(program, "-all", "-ptx", file).Output()
		if err != nil {
			tb.Fatalf("%s -all -ptx %s: %v", program, file, err)
		}
		return archsOf(linked, "elf"), archsOf(all, "ptx")
	}
	tb.Fatalf("no cuobjdump reads %s: %.500s", file, says)
	return nil, nil
}

var header = regexp.MustCompile(`Fatbin (?:relocatable )?(\w+) code:\n=+\narch = sm_(\d+)(\d[af]?)\n`)

// archsOf returns the archs in the headers that cuobjdump prints of one kind of code, elf or ptx.
func archsOf(out []byte, kind string) []string {
	found := map[string]bool{}
	for _, m := range header.FindAllSubmatch(out, -1) {
		if string(m[1]) == kind {
			minor := string(m[3])
			if kind == "elf" { // the family is the entry's, not the cubin's
				minor = strings.TrimSuffix(minor, "f")
			}
			found[string(m[2])+"."+minor] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
