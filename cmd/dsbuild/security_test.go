//go:build linux

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityPromisesHaveTests: each bullet of SECURITY.md about a threat ends with a comment that names the tests
// which hold it, or says that it is a limit. A test that is renamed or removed breaks its promise.
func TestSecurityPromisesHaveTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(repository, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Threats and defences\n")
	section, _, ended := strings.Cut(section, "\n## ")
	bullets := regexp.MustCompile(`(?m)^- .*(\n {2}.*)*`).FindAllString(section, -1)
	if !found || !ended || len(bullets) < 90 {
		t.Fatalf("%d promises: %v, %v", len(bullets), found, ended)
	}
	tests := allTests(t)
	last := regexp.MustCompile(`<!-- (limit|((Test|Fuzz)\w+ ?)+) -->$`)
	for _, bullet := range bullets {
		names := last.FindStringSubmatch(bullet)
		switch {
		case names == nil:
			t.Errorf("no comment <!-- TestX TestY --> or <!-- limit --> at the end of:\n%s", bullet)
		case names[1] != "limit":
			for _, name := range strings.Fields(names[1]) {
				if !tests[name] {
					t.Errorf("there is no test %s, which this names:\n%s", name, bullet)
				}
			}
		}
	}
}
