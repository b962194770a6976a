package compat

import (
	"embed"
	"encoding/json"
	"fmt"
)

//go:embed data/*.json
var data embed.FS

// DeepSpeed is one release of DeepSpeed.
type DeepSpeed struct {
	Version string `json:"deepspeed"`
	SHA256  string `json:"sha256"` // of the source distribution
}

// Torch is one release of torch.
type Torch struct {
	Version string   `json:"torch"`
	CUDA    string   `json:"cuda"`    // X.Y
	Toolkit string   `json:"toolkit"` // X.Y.Z of the matching CUDA toolkit
	Pythons []string `json:"pythons"`
}

// CUDA is one release of the CUDA toolkit.
type CUDA struct {
	Version   string   `json:"cuda"`
	Archs     []string `json:"archs"`      // compute capabilities nvcc compiles for
	NewestGCC string   `json:"newest_gcc"` // newest host compiler, major
	Driver    string   `json:"driver"`     // oldest driver, major
}

// Tables are all the tables, read once by NewTables.
type Tables struct {
	DeepSpeeds []DeepSpeed // newest first
	Torches    []Torch     // newest first
	CUDAs      []CUDA      // newest first
	Ops        []Op
}

// NewTables reads the embedded tables.
func NewTables() (*Tables, error) {
	var t Tables
	for _, f := range []struct {
		name string
		into any
	}{
		{"deepspeed", &struct{ Releases *[]DeepSpeed }{&t.DeepSpeeds}},
		{"torch", &struct{ Releases *[]Torch }{&t.Torches}},
		{"cuda", &struct{ Releases *[]CUDA }{&t.CUDAs}},
		{"ops", &struct{ Ops *[]Op }{&t.Ops}},
	} {
		text, err := data.ReadFile("data/" + f.name + ".json")
		if err == nil {
			err = json.Unmarshal(text, f.into)
		}
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", f.name, err)
		}
	}
	return &t, nil
}
