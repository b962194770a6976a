package matrix

import (
	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

// reader turns one file into entries and collects its mistakes.
type reader struct{ *yamldoc.Reader }

// Read reads the matrix file at path. An error about its contents is an *Error that lists all
// mistakes.
func Read(path string) (*File, error) {
	r := newReader(path)
	body, err := r.Load(path, nil)
	if err != nil {
		return nil, err
	}
	return r.read(body)
}

func newReader(path string) *reader {
	return &reader{&yamldoc.Reader{
		File:  path,
		Kind:  "matrix",
		Least: `give at least "wheels: [{arch: 8.0}]"`,
		Share: "put what entries share into defaults",
	}}
}

// Entries reads the entries in body, a part of another file that r reads. It adds its mistakes to
// those of that file.
func Entries(r *yamldoc.Reader, body yamldoc.Node) []Entry { return (&reader{r}).readDocument(body) }

// read turns the body of a file into a File. The body is nil if the file as a whole cannot be
// read.
func (r *reader) read(body yamldoc.Node) (*File, error) {
	out := &File{lines: r.Lines}
	if body != nil {
		out.Entries = r.readDocument(body)
	}
	return out, r.Err()
}
