package pipeline

import (
	"os"
	"path/filepath"
	"testing"
)

// A request is told apart by its plan and by the builder that was asked for.
func TestRequest(t *testing.T) {
	a := plan(t, image(), nil, "8.0")
	b := plan(t, image(), nil, "9.0")
	seen := map[string]bool{}
	for _, p := range []*Plan{a, b} {
		for _, builder := range []string{"auto", "host"} {
			key := KeyOf(p, builder)
			if len(key) != 64 || seen[key] {
				t.Errorf("%q", key)
			}
			seen[key] = true
		}
	}
}

// What a request led to is known as long as the wheel is kept, and only the
// last that it led to.
func TestStoreKnowsRequests(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "wheels"), Keep: 2}
	asked := func(want string) {
		t.Helper()
		if got, err := s.PlanOf(t.Context(), "r"); err != nil || got != want {
			t.Errorf("asked: %q, %v; want %q", got, err, want)
		}
	}
	if err := s.LinkKey(t.Context(), "r", "d1"); err != nil { // no store yet
		t.Fatal(err)
	}
	asked("")
	for _, d := range []string{"d1", "d2"} {
		if err := s.Put(t.Context(), d, artifact(t, d, "a-1.whl", d)); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"d1", "d2", "d2"} {
		if err := s.LinkKey(t.Context(), "r", d); err != nil {
			t.Fatal(err)
		}
		asked(d)
	}
	if a, ok, err := s.Get("d2", t.TempDir()); err != nil || !ok || a.Manifest.Name != "a-1.whl" {
		t.Errorf("%+v, %v, %v", a, ok, err)
	}
	if err := s.LinkKey(t.Context(), "r", "d3"); err != nil { // of which there is no wheel
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.Dir, "d2")); err != nil {
		t.Fatal(err)
	}
	asked("")
	if _, ok, err := s.Get("d2", t.TempDir()); ok || err != nil {
		t.Errorf("a wheel that is gone: %v, %v", ok, err)
	}
}

func TestPlaced(t *testing.T) {
	if _, ok, err := FindExported(filepath.Join(t.TempDir(), "dist"), ""); ok || err != nil {
		t.Errorf("a folder that is not there: %v, %v", ok, err)
	}
	a := artifact(t, "", "a[1]-1.whl", "bytes") // its manifest names no plan
	dir := filepath.Dir(a.Path)
	if w, ok, err := FindExported(dir, ""); !ok || err != nil || w.File != a.Path {
		t.Errorf("%+v, %v, %v", w, ok, err)
	}
	if _, ok, err := FindExported(dir, "other"); ok || err != nil {
		t.Errorf("another plan: %v, %v", ok, err)
	}
	if err := os.WriteFile(a.Path, []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := FindExported(dir, ""); ok || err != nil {
		t.Errorf("a damaged wheel: %v, %v", ok, err)
	}
}
