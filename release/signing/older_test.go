package signing

import (
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/wheel"
)

// A version that comes before the minimum, or that is none, is refused; the minimum as a build has it is not.
func TestMinimum(t *testing.T) {
	t.Parallel()
	p := &Policy{Minimum: "0.19.8"}
	for version, older := range map[string]bool{
		"0.19.8": false, "0.19.8+torch2.15.cu132.sm80.v3": false, "0.19.10": false, "0.19.8.post1": false, "0.19.8.0": false, "1": false, "0.20.0rc1": false,
		"0.19.7+z": true, "0.19": true, "0.19.8rc1": true, "0.19.8.dev0+g1": true, "0.9.9": true, "": true, "new": true, strings.Repeat("9", 4000) + "x": true,
	} {
		if got := p.checkFacts(wheel.ProvenanceFacts{Version: version}, time.Now()); (len(got) > 0) != older {
			t.Errorf("%.40q: %.200q, want older: %v", version, got, older)
		}
	}
}
