package index_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/index"
	"github.com/dsbuild/dsbuild/wheel"
)

// shelf is a store in memory that counts what is read and written.
type shelf struct {
	objects map[string][]byte
	read    []string
	puts    []string
	onPut   func(name string)
}

func (s *shelf) List(context.Context) ([]index.Object, error) {
	var all []index.Object
	for name, data := range s.objects {
		all = append(all, index.Object{Name: name, Size: int64(len(data)), Version: string(data), Modified: evening})
	}
	return all, nil
}

func (s *shelf) Read(_ context.Context, name string, use func(io.Reader) error) error {
	s.read = append(s.read, name)
	data, ok := s.objects[name]
	if !ok {
		return fs.ErrNotExist
	}
	return use(bytes.NewReader(data))
}

func (s *shelf) Put(_ context.Context, name string, text []byte) error {
	s.puts = append(s.puts, name)
	s.objects[name] = text
	if s.onPut != nil {
		s.onPut(name)
	}
	return nil
}

func (s *shelf) Delete(_ context.Context, name string) error {
	delete(s.objects, name)
	return nil
}

// stock puts a wheel into the store, with what lies beside it.
func (s *shelf) stock(t *testing.T, file, folder string, suffixes ...string) {
	t.Helper()
	for _, suffix := range append(suffixes, "") {
		data, err := os.ReadFile(file + suffix)
		if err != nil {
			t.Fatal(err)
		}
		s.objects[folder+filepath.Base(file)+suffix] = data
	}
}

func TestWriteObjects(t *testing.T) {
	wheels := some(t)
	s := &shelf{objects: map[string][]byte{"mine.txt": []byte("stays"), "other-1.0-py3-none-any.whl": []byte("no wheel of dsbuild's")}}
	s.stock(t, wheels[0], "", wheel.ManifestSuffix)
	s.stock(t, wheels[1], "flat/")
	if err := index.HasObjects(t.Context(), s); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	delete(s.objects, "other-1.0-py3-none-any.whl")
	sum, err := index.WriteObjects(t.Context(), s, index.Options{URL: "https://wheels.example.org/"})
	if err != nil || len(sum.Indexes) != 2 || sum.Indexes[0].URL != "https://wheels.example.org/"+sm80+"/" {
		t.Fatalf("%+v, %v", sum, err)
	}
	page := string(s.objects[sm90+"/deepspeed/index.html"])
	if !strings.Contains(page, `href="../../flat/`+strings.ReplaceAll(filepath.Base(wheels[1]), "+", "%2B")+"#sha256="+sum.Indexes[1].Wheels[0].SHA256) {
		t.Error(page)
	}
	for _, name := range []string{filepath.Base(wheels[0]), "flat/" + filepath.Base(wheels[1])} {
		if !strings.HasPrefix(string(s.objects[name+index.MetadataSuffix]), "Metadata-Version:") {
			t.Errorf("%s has no METADATA beside it", name)
		}
	}
	if !strings.Contains(string(s.objects["index.html"]), sm80) || !strings.Contains(string(s.objects["index.json"]), sm90) {
		t.Error("the page lacks an index")
	}

	// Again: nothing is written, the address stays, and the wheel with a manifest is not read.
	s.read, s.puts = nil, nil
	sum, err = index.WriteObjects(t.Context(), s, index.Options{})
	if err != nil || sum.Written+sum.Removed != 0 || len(s.puts) > 0 || sum.Indexes[0].URL == "" {
		t.Errorf("%+v, %v, %q", sum, err, s.puts)
	}
	if slices.Contains(s.read, filepath.Base(wheels[0])) {
		t.Error("the wheel was read, though its manifest and METADATA lie beside it")
	}

	// Wheels that lie there no more leave the pages; what others put there stays.
	delete(s.objects, "flat/"+filepath.Base(wheels[1]))
	sum, err = index.WriteObjects(t.Context(), s, index.Options{})
	if _, left := s.objects[sm90+"/index.html"]; err != nil || left || sum.Removed != 4 || string(s.objects["mine.txt"]) != "stays" {
		t.Errorf("%+v, %v", sum, err)
	}
}

// A wheel that comes while the pages are written is on them in the end.
func TestObjectsComeMeanwhile(t *testing.T) {
	wheels := some(t)
	s := &shelf{objects: map[string][]byte{}}
	s.stock(t, wheels[0], "", wheel.ManifestSuffix)
	s.onPut = func(name string) {
		if name == "index.json" {
			s.onPut = nil
			s.stock(t, wheels[2], "", wheel.ManifestSuffix)
		}
	}
	sum, err := index.WriteObjects(t.Context(), s, index.Options{})
	if err != nil || len(sum.Indexes) != 2 || !strings.Contains(string(s.objects["index.json"]), old) {
		t.Errorf("%+v, %v", sum, err)
	}
}

func TestObjectsRefuse(t *testing.T) {
	wheels := some(t)
	s := &shelf{objects: map[string][]byte{"index.html": []byte("mine")}}
	s.stock(t, wheels[0], "", wheel.ManifestSuffix)
	conflict := new(index.ConflictError)
	if _, err := index.WriteObjects(t.Context(), s, index.Options{}); !errors.As(err, &conflict) || string(s.objects["index.html"]) != "mine" {
		t.Error(err)
	}
	delete(s.objects, "index.html")
	s.objects[".dsbuild-index.json"] = []byte(`{"files":["../other"]}`)
	if _, err := index.WriteObjects(t.Context(), s, index.Options{}); !errors.As(err, &conflict) {
		t.Error(err)
	}
	delete(s.objects, ".dsbuild-index.json")

	// A manifest of other bytes is not believed, and a damaged wheel ends the run.
	torn := filepath.Base(wheels[0])
	s.objects[torn+index.MetadataSuffix] = []byte("Metadata-Version: 2.1\nName: deepspeed\nVersion: 9\n")
	s.objects[torn] = s.objects[torn][:100]
	damaged := new(wheel.FileError)
	if _, err := index.WriteObjects(t.Context(), s, index.Options{}); !errors.As(err, &damaged) {
		t.Error(err)
	}
	delete(s.objects, torn)

	// Wheels of others are left out, with a warning.
	var warned []string
	foreign := strings.Replace(torn, "torch2.15", "other2.15", 1)
	s.stock(t, wheels[1], "")
	s.objects[foreign+".manifest.json"] = []byte(strings.ReplaceAll(string(readFile(t, wheels[0]+wheel.ManifestSuffix)), "torch2.15", "other2.15"))
	s.objects[foreign], s.objects[foreign+index.MetadataSuffix] = readFile(t, wheels[0]), []byte("Metadata-Version: 2.1\nName: deepspeed\nVersion: 9\n")
	sum, err := index.WriteObjects(t.Context(), s, index.Options{Warn: func(format string, args ...any) { warned = append(warned, format) }})
	if err != nil || len(sum.Indexes) != 1 || len(warned) == 0 {
		t.Errorf("%+v, %v, %q", sum, err, warned)
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The files beside a wheel in an index stay, also if the wheel is added again without them; others
// come to them.
func TestAddKeepsFilesBeside(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	wheels := some(t)
	signature := wheel.SignatureFile(wheels[0], "0123456789abcdef")
	if err := os.WriteFile(signature, []byte("first"), 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, index.Options{Dir: dir, Wheels: wheels[:1]})
	before := tree(t, dir)
	data, err := os.ReadFile(wheels[0])
	again := filepath.Join(other, filepath.Base(wheels[0]))
	if err == nil {
		err = os.WriteFile(again, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if sum, err := index.Add(t.Context(), index.Options{Dir: dir, Wheels: []string{again}}); err != nil || sum.Removed+sum.Written != 0 || !maps.Equal(tree(t, dir), before) {
		t.Errorf("%+v, %v", sum, err)
	}
}

func TestAdd(t *testing.T) {
	dir := t.TempDir()
	wheels := some(t)
	if index.Exists(dir) {
		t.Error("an empty folder holds no index")
	}
	write(t, index.Options{Dir: dir, Wheels: wheels[:1], URL: "https://wheels.example.org/"})
	sum, err := index.Add(t.Context(), index.Options{Dir: dir, Wheels: wheels[1:2]})
	if err != nil || len(sum.Indexes) != 2 || sum.Indexes[1].URL != "https://wheels.example.org/"+sm90+"/" || sum.Removed != 0 || !index.Exists(dir) {
		t.Errorf("%+v, %v", sum, err)
	}
	if sum, err = index.Add(t.Context(), index.Options{Dir: dir, Wheels: wheels[1:2]}); err != nil || sum.Written != 0 {
		t.Errorf("%+v, %v", sum, err)
	}
}
