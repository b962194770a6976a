package wheel

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
)

// TorchABI describes the interface of torch that a wheel uses.
type TorchABI struct {
	// Stable reports that the wheel uses only C functions that torch promises to keep, so that
	// it serves every torch from Min on.
	Stable bool   `json:"stable"`
	Min    string `json:"min"` // X.Y, or "" if the wheel is not stable or no function shows it
}

// IsStable reports whether a wheel uses only the stable ABI. A nil TorchABI does not.
func (a *TorchABI) IsStable() bool { return a != nil && a.Stable }

// The functions of torch's stable ABI by the torch that has them first; the file names its source.
//
//go:embed data/stable.json
var stableFunctions []byte

// minTorch returns the oldest torch that has all these functions of the stable ABI.
func minTorch(used []string) string {
	oldest := ""
	// The first torch, X.Y, of each function of the stable ABI. Older functions (aoti_torch_…)
	// are not in the table.
	var table struct {
		Releases []struct {
			Torch     string
			Functions []string
		}
	}
	if err := json.Unmarshal(stableFunctions, &table); err != nil {
		panic(fmt.Sprintf("data/stable.json: %v", err)) // it is part of the program, and tested
	}
	first := map[string]string{}
	for _, release := range table.Releases {
		for _, name := range release.Functions {
			first[name] = release.Torch
		}
	}
	for _, name := range used {
		oldest = newerVersion(oldest, first[name])
	}
	return oldest
}

// torchABI returns the interface of torch that the extensions use, or nil if none uses torch.
func (c Contents) torchABI() *TorchABI {
	var used []string
	for _, e := range c.Extensions {
		if e.Torch.CXX != "" {
			return &TorchABI{}
		}
		used = append(used, e.Torch.C...)
	}
	if len(used) == 0 {
		return nil
	}
	return &TorchABI{Stable: true, Min: minTorch(used)}
}

// torchLibrary has the functions of torch's stable ABI.
const torchLibrary = "libtorch_cpu.so"

// compareTorchABI compares the symbols that an extension imports with the requested ABI.
func (e Extension) compareTorchABI(asked *TorchABI) []string {
	if !asked.IsStable() {
		return nil
	}
	var findings []string
	if e.Torch.CXX != "" {
		findings = append(findings, fmt.Sprintf("%s uses torch's C++ interface, which is not stable: %s", e.title(), e.Torch.CXX))
	}
	if e.Torch.Python != "" {
		findings = append(findings, fmt.Sprintf("%s uses Python's C interface: %s", e.title(), e.Torch.Python))
	}
	if len(e.Torch.C) > 0 && !slices.Contains(e.Needs, torchLibrary) {
		findings = append(findings,
			fmt.Sprintf("%s uses functions of %s, but is not linked to the library", e.title(), torchLibrary))
	}
	if e.Unique {
		findings = append(findings, fmt.Sprintf("%s has process-wide unique symbols (STB_GNU_UNIQUE), "+
			"which another op's symbols could replace", e.title()))
	}
	if oldest := minTorch(e.Torch.C); CompareVersions(oldest, asked.Min) > 0 {
		findings = append(findings, fmt.Sprintf("%s uses functions of torch %s, requested torch %s", e.title(), oldest, asked.Min))
	}
	return findings
}

// lowerBound matches a Requires-Python that has only a lower bound.
var lowerBound = regexp.MustCompile(`^>= *(\d+\.\d+)$`)
