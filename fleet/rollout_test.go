package fleet_test

import (
	"slices"
	"testing"

	"github.com/dsbuild/dsbuild/fleet"
)

func TestParseSerial(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]fleet.Serial{
		"1": {{N: 1}}, "10%": {{N: 10, Percent: true}}, "1,10%,100%": {{N: 1}, {N: 10, Percent: true}, {N: 100, Percent: true}},
	} {
		if got, err := fleet.ParseSerial(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "+1", "0%", "101%", "1.5", "5 %", "a", "1,", ",1", "%", "99999999999999999999"} {
		if got, err := fleet.ParseSerial(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
