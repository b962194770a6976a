package inventory

import (
	"context"
	"io"
)

// Read reads an inventory from r as Open reads the file at path.
func Read(r io.Reader, path string) (*Inventory, error) {
	return Options{}.read(context.Background(), r, path)
}
