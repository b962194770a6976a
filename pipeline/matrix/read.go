package matrix

import (
	"github.com/goccy/go-yaml/ast"

	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

// Read reads the matrix file at path. An error about its contents is an *Error
// with all that is wrong.
func Read(path string) (*File, error) {
	r := newReader(path)
	body, err := r.Load(path, nil)
	if err != nil {
		return nil, err
	}
	return r.read(body)
}

// reader turns one file into entries and collects what is wrong with it.
type reader struct{ *yamldoc.Reader }

func newReader(path string) *reader {
	return &reader{&yamldoc.Reader{
		File:  path,
		Kind:  "matrix",
		Least: `give at least "wheels: [{arch: 8.0}]"`,
		Share: "put what entries share into defaults",
	}}
}

// Entries reads what body, a part of another file that r reads, asks for. What is
// wrong there is added to what is wrong with that file.
func Entries(r *yamldoc.Reader, body ast.Node) []Entry { return (&reader{r}).document(body) }

func parse(path string, data []byte) (*File, error) {
	r := newReader(path)
	return r.read(r.Body(data))
}

// read turns the body of a file, nil if something is wrong with the whole, into
// what it asks for.
func (r *reader) read(body ast.Node) (*File, error) {
	out := &File{}
	if body != nil {
		out.Entries = r.document(body)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	out.lines = r.Lines
	return out, nil
}
