// Package matrix reads the file that asks for several wheels at once.
//
// A file gives entries: the product of lists (matrix, less what exclude names)
// and single ones (wheels), each laid over defaults. It says nothing about how
// they are built.
package matrix

import (
	"github.com/dsbuild/dsbuild/internal/mistake"
)

// Position is a place in a matrix file.
type Position = mistake.Position

// Error holds everything found wrong with a matrix file.
type Error = mistake.Error

// MaxEntries bounds how many wheels a file may ask for.
const MaxEntries = 1000

// Entry is one wheel that is asked for, in the words of the flags of dsbuild
// wheel; what is empty was not said.
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
	Base      string
	KeepDebug bool
}

// File is a matrix file that was read.
type File struct {
	Entries []Entry
	lines   []string
}

// Mistakes collects what is wrong with the entries of a file, to be shown with
// the lines they stand in.
func (f *File) Mistakes() *mistake.List { return &mistake.List{Lines: f.lines} }

// key is a key of an entry, and where its value goes.
type key struct {
	name string
	set  func(*Entry, value)
}

// keys are those of an entry beside its name: flags of dsbuild wheel.
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
		{"base", func(e *Entry, v value) { e.Base = v.text() }},
		{"keep-debug", func(e *Entry, v value) { e.KeepDebug = v.yes }},
	}
}

// lists are the keys whose value may be a list.
func lists() []string { return []string{"arch", "gpu", "ops"} }

// Keys lists the keys of an entry: the flags that a matrix file takes the place
// of.
func Keys() []string {
	var names []string
	for _, k := range keys() {
		names = append(names, k.name)
	}
	return names
}
