package main

import (
	"debug/elf"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// TestSBOM reads the document of this very test, which is linked with cyclonedx-go.
func TestSBOM(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bom.json")
	if err := writeSBOM(exe, file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		Format     string `json:"bomFormat"`
		Components []struct {
			Name       string `json:"name"`
			PURL       string `json:"purl"`
			Properties []struct{ Name, Value string }
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &bom); err != nil || bom.Format != "CycloneDX" {
		t.Fatalf("%v: %s", err, text)
	}
	for _, c := range bom.Components {
		if c.Name == "github.com/CycloneDX/cyclonedx-go" && c.PURL != "" && len(c.Properties) == 1 {
			return
		}
	}
	t.Errorf("cyclonedx-go is not in it: %s", text)
}

func TestSBOMOfNoProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bom.json")
	if err := writeSBOM("main.go", file); err == nil {
		t.Error("a text file is a program")
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a document was written")
	}
}

// TestNoMethodByName: nothing in the program calls methods by names that it computes, as text/template does. So the linker
// drops the methods that nothing calls, which are 8 of 38 MB.
func TestNoMethodByName(t *testing.T) {
	program, err := elf.Open("../../bin/dsbuild")
	if err != nil {
		needs.Missing(t, "no program of Linux: %v; make build makes it", err)
	}
	defer program.Close()
	symbols, err := program.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Name == "text/template.(*state).evalField" {
			t.Error("the program has text/template: cobra's templates, or gRPC's pages without the tag grpcnotrace?")
		}
	}
}
