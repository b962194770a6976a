package wheel

import "testing"

func TestTorchPin(t *testing.T) {
	for torch, want := range map[string]string{
		"2.15.0":             "torch<2.16,>=2.15",
		"2.15.0+cu132":       "torch<2.16,>=2.15",
		"2.9.1":              "torch<2.10,>=2.9",
		"2.6.0a0":            "torch<2.7,>=2.6.0a0",
		"2.10.0.dev20250901": "torch<2.11,>=2.10.0.dev20250901",
		"2":                  "",
		"2.x":                "",
	} {
		got, err := torchPin(torch)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", torch, got, err)
		}
	}
}
