package inventory

import "github.com/dsbuild/dsbuild/internal/lineerr"

// Position is a position in an inventory file. Line and Column count from 1. A zero
// Line stands for the whole file, an empty File for no file.
type Position = lineerr.Position

// Problem is one error in an inventory.
type Problem = lineerr.Problem

// Error lists all errors of an inventory, in file order.
type Error = lineerr.Error
