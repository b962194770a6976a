package wheel_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

func TestWriteVariant(t *testing.T) {
	file := wheeltest.Packed(t, t.TempDir(), wheeltest.Options{Scripts: map[string]string{"ds_report": "#!python\n"}})
	v := wheel.Variant{Version: "0.19.8+torch2.15", Label: "sm80.v3", JSON: []byte("{}\n")}
	var first []byte
	for range 2 {
		path, metadata, err := wheel.WriteVariant(t.Context(), file, t.TempDir(), v)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && !bytes.Equal(first, data) {
			t.Error("two runs make other bytes")
		}
		first = data
		if filepath.Base(path) != "deepspeed-0.19.8+torch2.15-cp311-cp311-manylinux_2_17_x86_64-sm80.v3.whl" || !strings.Contains(string(metadata), "\nVersion: 0.19.8+torch2.15\n") {
			t.Errorf("%s, %s", path, metadata)
		}
		files := wheeltest.Read(t, path)
		if files["deepspeed-0.19.8+torch2.15.dist-info/variant.json"] != "{}\n" || files["deepspeed-0.19.8+torch2.15.data/scripts/ds_report"] != "#!python\n" {
			t.Errorf("%q", files)
		}
		for name, text := range files {
			if strings.Contains(name+text, "cu132.sm80.v3") {
				t.Errorf("%s still says the old version", name)
			}
		}

		// Without its label it is a wheel like any other.
		plain := filepath.Join(t.TempDir(), strings.Replace(filepath.Base(path), "-sm80.v3.whl", ".whl", 1))
		if err := os.WriteFile(plain, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := wheel.Verify(t.Context(), plain); err != nil || got.Err() != nil {
			t.Errorf("%+v, %v", got.Findings(), err)
		}
	}
	v.Label = "Sm-80"
	if _, _, err := wheel.WriteVariant(t.Context(), file, t.TempDir(), v); err == nil {
		t.Error("a label with capitals and a minus is taken")
	}
}
