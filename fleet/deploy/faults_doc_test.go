package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The table of faults in docs/fleet.md names tests that are there, at least one for
// each fault, and every long one.
func TestFaultsHaveTheTestsThatAreNamed(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	for _, dir := range []string{".", "../../internal/remote", "../../cmd/dsbuild"} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(text)
		}
	}
	var tests []string
	for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllStringSubmatch(source.String(), -1) {
		tests = append(tests, m[1])
	}
	page, err := os.ReadFile("../../docs/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| fault | result | tests |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if !found || table == "" {
		t.Fatal("docs/fleet.md has no table of faults")
	}
	for line := range strings.Lines(table) {
		named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(line, -1)
		if len(named) == 0 {
			t.Errorf("no test is named: %s", line)
		}
		for _, m := range named {
			if !slices.Contains(tests, m[1]) {
				t.Errorf("there is no test %s", m[1])
			}
		}
	}
	for _, test := range tests {
		if strings.HasPrefix(test, "TestFullFaults") && !strings.Contains(table, "`"+test+"`") {
			t.Errorf("%s is not in the table", test)
		}
	}
}
