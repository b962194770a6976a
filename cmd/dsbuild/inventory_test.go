package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without ansible-inventory an Ansible inventory is exit code 2 with a hint, in all its forms.
func TestAnsibleInventoryIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for text, mode := range map[string]os.FileMode{
		"[gpu]\ngpu01\n": 0o600, "all: {hosts: {gpu01: }}\n": 0o600, "plugin: amazon.aws.aws_ec2\n": 0o600,
		"gpu01 ansible_host='10.0.0.1'": 0o600, "#!/bin/sh\necho {}\n": 0o700,
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "hosts")
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{file, dir} {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), []string{"nodes", name}, strings.NewReader(""), &stdout, &stderr)
			said := stderr.String()
			want := "but ansible-inventory is not installed\nhint: install it (pip install ansible-core), or run "
			if code != 2 || stdout.Len() > 0 || !strings.Contains(said, want) {
				t.Errorf("%q as %s: exit %d, want 2\n%s%s", text, name, code, &stdout, said)
			}
		}
	}
}

// An ansible-inventory that does not stop printing is ended.
func TestAnsibleInventoryPrintsTooMuch(t *testing.T) {
	dir := t.TempDir()
	program := "#!/bin/sh\nexec head -c 300000000 /dev/zero\n"
	if err := os.WriteFile(filepath.Join(dir, "ansible-inventory"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if answer, err := ansibleInventory()(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "larger than 256.0 MiB") {
		t.Errorf("%d bytes, %v", len(answer), err)
	}
}
