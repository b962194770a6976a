// Package matrix reads the file that requests several wheels at once.
//
// A file lists entries: the product of lists (matrix, without the combinations in exclude) and
// single ones (wheels). The defaults apply to each of them. The file does not say how the wheels
// are built.
package matrix

import (
	"github.com/dsbuild/dsbuild/internal/diagnostic"
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
	set  func(*Entry, value)
}

// keys returns the keys of an entry except its name: they are flags of dsbuild wheel.
func keys() []key {
	return []key{
		{"deepspeed", func(e *Entry, v value) { e.DeepSpeed = v.text() }},
		{"torch", func(e *Entry, v value) { e.Torch = v.text() }},
		{"cuda", func(e *Entry, v value) { e.CUDA = v.text() }},
		{"python", func(e *Entry, v value) { e.Python = v.text() }},
		{"arch", func(e *Entry, v value) { e.Archs, e.GPUs = v.words, nil }},
		{"gpu", func(e *Entry, v value) { e.GPUs, e.Archs = v.words, nil }},
		{"ops", func(e *Entry, v value) { e.Ops = v.words }},
		{"cpu", func(e *Entry, v value) { e.CPU = v.text() }},
		{"glibc", func(e *Entry, v value) { e.Glibc = v.text() }},
		{"driver", func(e *Entry, v value) { e.Driver = v.text() }},
		{"abi", func(e *Entry, v value) { e.ABI = v.text() }},
		{"base", func(e *Entry, v value) { e.Base = v.text() }},
		{"keep-debug", func(e *Entry, v value) { e.KeepDebug = v.yes }},
	}
}

// lists returns the keys whose value may be a list.
func lists() []string { return []string{"arch", "gpu", "ops"} }

// Keys lists the keys of an entry: the flags that a matrix file replaces.
func Keys() []string {
	var names []string
	for _, k := range keys() {
		names = append(names, k.name)
	}
	return names
}
