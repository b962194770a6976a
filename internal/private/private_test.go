package private_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsbuild/dsbuild/internal/private"
)

const (
	stranger = 4242 // an account and a group that do not exist
	access   = "system.posix_acl_access"
	inherit  = "system.posix_acl_default"
)

// entry is an entry of an ACL: tags of the kernel are 1 owner, 2 user, 4 group of the file, 8 group, 16 mask, 32 other.
type entry struct {
	tag, rights uint16
	id          uint32
}

// setACL sets an access control list as the kernel stores it.
func setACL(t *testing.T, path, name string, entries ...entry) {
	t.Helper()
	text := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range entries {
		text = binary.LittleEndian.AppendUint16(text, e.tag)
		text = binary.LittleEndian.AppendUint16(text, e.rights)
		text = binary.LittleEndian.AppendUint32(text, e.id)
	}
	if err := unix.Setxattr(path, name, text, 0); err != nil {
		t.Fatalf("the file system of %s must have ACLs: %v", path, err)
	}
}

const none = ^uint32(0) // the ID of entries without one

// with returns an ACL of the owner, one more entry and a mask.
func with(e entry, mask uint16) []entry {
	all := []entry{{1, 7, none}}
	if e.tag == 2 {
		all = append(all, e)
	}
	all = append(all, entry{4, 5, none})
	if e.tag == 8 {
		all = append(all, e)
	}
	return append(all, entry{16, mask, none}, entry{32, 5, none})
}

func TestCheck(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to give files to other accounts")
	}
	const dirs = "a/b/c"
	for name, c := range map[string]struct {
		change func(path string) error
		acl    []entry
		list   string // access or inherit
		unsafe bool
	}{
		"ours":                  {},
		"another owner":         {change: func(p string) error { return os.Chown(p, stranger, 0) }, unsafe: true},
		"writable by all":       {change: func(p string) error { return os.Chmod(p, 0o777) }, unsafe: true},
		"writable by a group":   {change: func(p string) error { return os.Chmod(p, 0o775|os.ModeSetgid) }},
		"by a group of another": {change: func(p string) error { return errorsOf(os.Chown(p, 0, stranger), os.Chmod(p, 0o775)) }, unsafe: true},
		"readable by all":       {change: func(p string) error { return os.Chmod(p, 0o755) }},

		"ACL: a user may write":              {acl: with(entry{2, 7, stranger}, 7), list: access, unsafe: true},
		"ACL: a group may write":             {acl: with(entry{8, 7, stranger}, 7), list: access, unsafe: true},
		"ACL: a user may write new files":    {acl: with(entry{2, 7, stranger}, 7), list: inherit, unsafe: true},
		"ACL: a group may write new files":   {acl: with(entry{8, 6, stranger}, 7), list: inherit, unsafe: true},
		"ACL: others may write new files":    {acl: []entry{{1, 7, none}, {4, 5, none}, {32, 7, none}}, list: inherit, unsafe: true},
		"ACL: a user may read":               {acl: with(entry{2, 5, stranger}, 7), list: access},
		"ACL: a user may write, mask denies": {acl: with(entry{2, 7, stranger}, 5), list: access},
		"ACL: root may write":                {acl: with(entry{2, 7, 0}, 7), list: access},
		"ACL: adds nobody":                   {acl: []entry{{1, 7, none}, {4, 5, none}, {32, 5, none}}, list: inherit},
	} {
		for _, changed := range []string{"a", dirs} {
			top := t.TempDir()
			path := filepath.Join(top, changed)
			if err := errorsOf(os.Chmod(top, 0o755), os.MkdirAll(filepath.Join(top, dirs), 0o755)); err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				if err := c.change(path); err != nil {
					t.Fatal(err)
				}
			}
			if c.acl != nil {
				if _, err := exec.LookPath("getfacl"); err != nil && !c.unsafe {
					continue // without it every ACL is unsafe
				}
				setACL(t, path, c.list, c.acl...)
			}
			err := private.Check(t.Context(), filepath.Join(top, dirs))
			if (err != nil) != c.unsafe || c.unsafe && !strings.HasPrefix(err.Error(), "other users can change "+path+" (owner ") {
				t.Errorf("%s, at %s: %v, want unsafe: %t", name, changed, err, c.unsafe)
			}
			if err := private.Check(t.Context(), top, "a", "a/b", "a/b/c", "a/none"); (err != nil) != c.unsafe {
				t.Errorf("%s, as a file at %s: %v, want unsafe: %t", name, changed, err, c.unsafe)
			}
		}
	}
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// A directory may have links to it, but only of this account or of root; a file in it must not be a link.
func TestLinks(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to give a link to another account")
	}
	top := t.TempDir()
	if err := errorsOf(os.Chmod(top, 0o755), os.MkdirAll(filepath.Join(top, "real/inner  of -> it"), 0o755), os.Symlink("real", filepath.Join(top, "link")),
		os.Symlink("real/inner  of -> it", filepath.Join(top, "deep")), os.MkdirAll(filepath.Join(top, "open/inner"), 0o755), os.Chmod(filepath.Join(top, "open"), 0o777),
		os.MkdirAll(filepath.Join(top, "two\n\nlines/inner"), 0o755), os.Symlink("link", filepath.Join(top, "theirs")), os.Symlink("loop", filepath.Join(top, "loop")), os.Lchown(filepath.Join(top, "theirs"), stranger, stranger)); err != nil {
		t.Fatal(err)
	}
	for path, unsafe := range map[string]bool{
		"link": false, "link/inner  of -> it": false, "link/inner  of -> it/none/at/all": false, "theirs": true, "theirs/inner": true, "loop": true,
		"open": true, "link/../open/inner": true, "deep/../../open/inner": true, "deep/../open/inner": false, "deep/./..//../none/../real": false,
		"two\n\nlines/inner": true,
	} {
		if err := private.Check(t.Context(), top+"/"+path); (err != nil) != unsafe {
			t.Errorf("%s: %v, want unsafe: %t", path, err, unsafe)
		}
	}
	for files, want := range map[string]string{
		"link": "link", "real,none,open,open/inner": "open", "real,real/inner  of -> it,none,none/inner": "", "none,real,theirs": "theirs",
	} {
		err := private.Check(t.Context(), top, strings.Split(files, ",")...)
		if (err != nil) != (want != "") || err != nil && !strings.HasPrefix(err.Error(), "other users can change "+filepath.Join(top, want)+" (owner ") {
			t.Errorf("the files %s: %v, want that %q is not private", files, err, want)
		}
	}
}

// A group is the owner's own only if no other account has it, as a member or as its primary group.
func TestPrivateGroup(t *testing.T) {
	for _, c := range []struct {
		group, passwd string // as getent prints them
		private       bool
	}{
		{"me:x:500:", "", true},
		{"me:x:500:me", "me:x:500:500::/:/bin/sh\n", true},
		{"me:x:500:mallory", "", false},
		{"me:x:500:me,mallory", "", false},
		{"staff:x:500:", "", false},
		{"me:x:500:", "me:x:500:500::/:/bin/sh\nmallory:x:501:500::/:/bin/sh\n", false},
		{"me:x:500:", "mallory:x:501:5000::/:/bin/sh\n", true},
		{"", "", false}, // a group without an entry
	} {
		script := private.Script() + fmt.Sprintf(`
			id() { echo me; }
			getent() { case $1 in group) [ -n '%[1]s' ] && echo '%[1]s' ;; *) printf '%%s' '%[2]s' ;; esac; }
			owner=500 && private 500`, c.group, c.passwd)
		if err := exec.Command("sh", "-c", script).Run(); (err == nil) != c.private {
			t.Errorf("group %q, accounts %q: %v, want private: %t", c.group, c.passwd, err, c.private)
		}
	}
}

// Without the programs that it needs, nothing is private; Check itself finds them without a PATH.
func TestNoPrograms(t *testing.T) {
	t.Setenv("PATH", "")
	out, err := exec.Command("/bin/sh", "-c", private.Script()+"unsafe /").Output()
	if err != nil || !strings.HasPrefix(string(out), "cannot check who can change /") {
		t.Errorf("%q, %v, want that nothing could be checked", out, err)
	}
	if err := private.Check(t.Context(), "/"); err != nil {
		t.Errorf("the root directory: %v", err)
	}
}
