package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without ansible-inventory an inventory that only Ansible reads is exit code 2,
// with the place and a hint, as a file and from standard input.
func TestAnsibleInventoryIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for text, want := range map[string]string{
		"gpu01 ansible_become=true\n":   `:1:7: only ansible-inventory can read the variable "ansible_become", and it is not installed`,
		"all: {hosts: {gpu01: }}\n":     ": only ansible-inventory can read this file, and it is not installed",
		"plugin: amazon.aws.aws_ec2\n":  ": only ansible-inventory can read this file, and it is not installed",
		"gpu01 ansible_host='10.0.0.1'": ":1:20: only ansible-inventory can read quotes, and it is not installed",
	} {
		file := filepath.Join(t.TempDir(), "hosts")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{file, "-"} {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), []string{"nodes", name}, strings.NewReader(text), &stdout, &stderr)
			said := stderr.String()
			if code != 2 || stdout.Len() > 0 || !strings.Contains(said, want) || !strings.Contains(said, "\nhint: install ansible-core; or run ") {
				t.Errorf("%q as %s: exit %d\n%s%s", text, name, code, &stdout, said)
			}
		}
	}
}
