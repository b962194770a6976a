package inventory

import "github.com/dsbuild/dsbuild/internal/lineerr"

// Position is a place in an inventory file. Line and Column count from 1; a
// Line of 0 means the file as a whole, an empty File no file at all.
type Position = lineerr.Position

// Problem is one thing wrong with an inventory.
type Problem = lineerr.Problem

// Error holds everything found wrong with an inventory, in the order of the file.
type Error = lineerr.Error
