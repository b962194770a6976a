package verify

import "github.com/dsbuild/dsbuild/inventory"

// AdviceTexts are the hints by their codes.
func AdviceTexts() map[string]string { return adviceTexts("python", "ENVIRONMENT") }

// AdviceFor is the hint for a code that a node sent.
func AdviceFor(code string, h inventory.Host) string { return adviceFor(code, h) }
