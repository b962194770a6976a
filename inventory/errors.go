package inventory

import "github.com/dsbuild/dsbuild/internal/diagnostic"

// Position is a place in an inventory file. Line and Column count from 1; a
// Line of 0 means the file as a whole, an empty File no file at all.
type Position = diagnostic.Position

// Problem is one thing wrong with an inventory.
type Problem = diagnostic.Problem

// Error holds everything found wrong with an inventory, in the order of the file.
type Error = diagnostic.Error
