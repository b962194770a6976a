package publish

import (
	"errors"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
)

func TestSecretsAreHidden(t *testing.T) {
	var s secrets
	s.addLogin(login{"ci", "pass  word"})
	s.add("no") // too short: it would occur in any text
	const text = "no pass  word, pass++word, pass%20%20word, Y2k6cGFzcyAgd29yZA=="
	if got := s.hide(errors.New(text)).Error(); got != "no ***, ***, ***, ***" {
		t.Errorf("%q became %q", text, got)
	}
	err := s.hide(fault.New(fault.Wheel, "not pass  word", "pass  word"))
	if err.Error() != "***" || fault.Hint(err) != "not ***" || fault.ExitCode(err) != fault.Wheel {
		t.Errorf("%v, hint %q, code %d", err, fault.Hint(err), fault.ExitCode(err))
	}
	if s.hide(nil) != nil {
		t.Error("nothing became an error")
	}
}
