// Package matrix reads the file that requests several wheels at once.
//
// A file lists entries: the product of lists (matrix, without the combinations in exclude) and
// single ones (wheels). The defaults apply to each of them. The file does not say how the wheels
// are built.
package matrix

import (
	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/internal/each"
)

// Position is a place in a matrix file.
type Position = diagnostic.Position

// Error holds all mistakes in a matrix file.
type Error = diagnostic.Error

// MaxEntries bounds the number of wheels in a file.
const MaxEntries = 1000

// Entry is a request for one wheel. Its fields are flags of dsbuild wheel; an empty field was not
// given.
type Entry struct {
	Name      string
	Position  Position
	DeepSpeed string
	Torch     string
	CUDA      string
	Python    string
	Archs     []string
	GPUs      []string
	Ops       []string
	Machine   string
	CPU       string
	Glibc     string
	Driver    string
	ABI       string
	Base      string
	KeepDebug bool

	places map[string]Position // of the values, by key
}

// Place returns the position of a key's value; that of the entry if the file does not give the key.
func (e Entry) Place(key string) Position {
	if at, ok := e.places[key]; ok {
		return at
	}
	return e.Position
}

// File is a matrix file that was read.
type File struct {
	Entries []Entry
	lines   []string
}

// Mistakes collects the mistakes in the entries of a file, to be shown with their lines.
func (f *File) Mistakes() *diagnostic.List { return &diagnostic.List{Lines: f.lines} }

// key is a key of an entry, with the function that stores its value.
type key struct {
	name string
	set  func(*Entry, setting)
}

// keys returns the keys of an entry except its name: they are flags of dsbuild wheel.
func keys() []key {
	return []key{
		{"deepspeed", func(e *Entry, s setting) { e.DeepSpeed = s.text() }},
		{"torch", func(e *Entry, s setting) { e.Torch = s.text() }},
		{"cuda", func(e *Entry, s setting) { e.CUDA = s.text() }},
		{"python", func(e *Entry, s setting) { e.Python = s.text() }},
		{"arch", func(e *Entry, s setting) { e.Archs, e.GPUs = s.words, nil }},
		{"gpu", func(e *Entry, s setting) { e.GPUs, e.Archs = s.words, nil }},
		{"ops", func(e *Entry, s setting) { e.Ops = s.words }},
		{"machine", func(e *Entry, s setting) { e.Machine = s.text() }},
		{"cpu", func(e *Entry, s setting) { e.CPU = s.text() }},
		{"glibc", func(e *Entry, s setting) { e.Glibc = s.text() }},
		{"driver", func(e *Entry, s setting) { e.Driver = s.text() }},
		{"abi", func(e *Entry, s setting) { e.ABI = s.text() }},
		{"base", func(e *Entry, s setting) { e.Base = s.text() }},
		{"keep-debug", func(e *Entry, s setting) { e.KeepDebug = s.text() == "true" }},
	}
}

// Keys lists the keys of an entry: the flags that a matrix file replaces.
func Keys() []string {
	return each.Map(keys(), func(k key) string { return k.name })
}
