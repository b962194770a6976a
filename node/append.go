package node

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"io"

	"github.com/dsbuild/dsbuild/internal/remote"
)

//go:embed append.py
var appendPython string

var appendProgram = NewProgram(appendPython)

// Append makes the Python of a node append the bytes of from to a file there, at the offset at. It
// returns the sha256 of the whole file in hex. It serves remote.Upload.Write.
func Append(ctx context.Context, r remote.Runner, python, path string, at int64, from io.Reader) (string, error) {
	var got struct {
		SHA256 string `json:"sha256"`
	}
	script := Script{Python: python, Program: appendProgram, Request: map[string]any{"path": path, "at": at}, More: from}
	err := script.Run(ctx, r, func(m json.RawMessage) error { return Decode(m, &got) })
	if err == nil && got.SHA256 == "" {
		err = errors.New("the program that writes it gave no answer")
	}
	return got.SHA256, err
}
