package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
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
