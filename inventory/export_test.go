package inventory

import (
	"context"
	"io"
)

// Read reads an inventory from r as Open reads the file at path.
func Read(r io.Reader, path string) (*Inventory, error) {
	inv, err := Options{}.read(context.Background(), r, path)
	if err == nil {
		Options{}.setDefaults(inv)
	}
	return inv, err
}
