package inventory

import "testing"

// Addresses and users end up in scripts and command lines: nothing in them is a
// shell's.
func TestAddressAlphabet(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"gpu01", "gpu_01.example.org", "10.0.0.1", "fd00::1", "fe80::1%eth0", "fe80::1%br-lan.2", "::ffff:10.0.0.1"} {
		if err := checkAddress(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"fe80::1%$(id)", "fe80::1%`id`", "fe80::1%a b", "fe80::1%a;b", "fe80::1%a\nb", "fe80::1%a}b", "fe80::1%'", "$(id)", "-x", ""} {
		if err := checkAddress(bad); err == nil {
			t.Errorf("the address %q is taken", bad)
		}
	}
}

func TestUserAlphabet(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"root", "train-1", "a.b", "_x", "müller", `CORP\alice`, "u+x", "1000"} {
		if err := checkUser(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"$(id)", "`id`", "a;b", "a|b", "a&b", "a'b", `a"b`, "a}b", "a*", "-x", "a b", "a\nb", "a@b", "a:b", "a/b", `\a`, `a\`, "%h", ""} {
		if err := checkUser(bad); err == nil {
			t.Errorf("the user %q is taken", bad)
		}
	}
}
