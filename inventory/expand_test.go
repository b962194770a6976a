package inventory_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

func TestExpand(t *testing.T) {
	for expr, want := range map[string]string{
		"gpu1":              "gpu1",
		"gpu[01-03,16]":     "gpu01 gpu02 gpu03 gpu16",
		"gpu[8-11]":         "gpu8 gpu9 gpu10 gpu11",
		"gpu[098-101]":      "gpu098 gpu099 gpu100 gpu101",
		"n[1-2]x[1-2]":      "n1x1 n1x2 n2x1 n2x2",
		"a,b[1-2]c,[3,2]":   "a b1c b2c 3 2",
		"gpu[7]":            "gpu7",
		"gpu[1,1]":          "gpu1 gpu1",
		"gpu[0-1]/train":    "gpu0/train gpu1/train",
		"r[1-2][1-2].dc-01": "r11.dc-01 r12.dc-01 r21.dc-01 r22.dc-01",
	} {
		got, err := inventory.Expand(expr)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, error %v", expr, got, err)
		}
	}
	if got, err := inventory.Expand("n[1-1000]x[001-100]"); err != nil || len(got) != inventory.MaxNames {
		t.Errorf("as many names as allowed: got %d, error %v", len(got), err)
	}
}

func TestExpandErrors(t *testing.T) {
	for expr, want := range map[string]inventory.RangeError{
		"":                          {0, "missing name"},
		"a,":                        {2, "missing name"},
		",a":                        {0, "missing name"},
		"a[1-2":                     {1, "unmatched ["},
		"ab]":                       {2, "unmatched ]"},
		"n[3-1]":                    {2, "descending range 3-1"},
		"n[1,5-2]":                  {4, "descending range 5-2"},
		"n[08-9]":                   {2, "bounds of range 08-9 have different widths (did you mean 08-09?)"},
		"n[8-09]":                   {2, "bounds of range 8-09 have different widths (did you mean 8-9?)"},
		"n[]":                       {2, `invalid range "": want a number, or a range such as 01-16`},
		"n[a-b]":                    {2, `invalid range "a-b": want a number, or a range such as 01-16`},
		"n[1-2-3]":                  {2, `invalid range "1-2-3": want a number, or a range such as 01-16`},
		"n[[1]]":                    {2, `invalid range "[1": want a number, or a range such as 01-16`},
		"n[+1-2]":                   {2, `invalid range "+1-2": want a number, or a range such as 01-16`},
		"n[1234567890123456789]":    {2, `number "1234567890123456789" is too large`},
		"x,n[1-100001]":             {2, "more than 100000 names"},
		"n[0-999999999999999999]":   {0, "more than 100000 names"},
		"a[1-99999]x[1-99999]":      {0, "more than 100000 names"},
		"a[1-99999],b[1-2]":         {11, "more than 100000 names"},
		strings.Repeat("x", 256):    {0, "name longer than 255 characters"},
		strings.Repeat("[10]", 128): {0, "name longer than 255 characters"},
	} {
		got, err := inventory.Expand(expr)
		var wrong *inventory.RangeError
		if !errors.As(err, &wrong) || *wrong != want || got != nil {
			t.Errorf("%s: got %d names, error %+v", expr, len(got), err)
		}
	}
}

// What ui.FoldNames folds, Expand unfolds.
func FuzzExpand(f *testing.F) {
	for _, expr := range []string{
		"gpu[01-16,20]", "n[1-2]x[1-2]", "a,b", "gpu[08-11],gpu[8-11]", "a1b2,a1b3,a2b2", "n[1-2]/e[1-2]",
		"x[0-3,5],x[007-011]", "[98-101]", "n[3-1]", "n[1-", "1234567890123456789,2234567890123456789",
	} {
		f.Add(expr)
	}
	f.Fuzz(func(t *testing.T, expr string) {
		names, err := inventory.Expand(expr)
		if err != nil {
			var wrong *inventory.RangeError
			if !errors.As(err, &wrong) || wrong.Offset < 0 || wrong.Offset > len(expr) {
				t.Fatalf("error %#v", err)
			}
			return
		}
		if len(names) == 0 || len(names) > inventory.MaxNames {
			t.Fatalf("%d names", len(names))
		}
		if len(names) > 2000 { // folding more says nothing new
			return
		}
		folded := ui.FoldNames(names)
		again, err := inventory.Expand(folded)
		if err != nil {
			t.Fatalf("%q folds to %q: %v", expr, folded, err)
		}
		slices.Sort(names)
		slices.Sort(again)
		if names = slices.Compact(names); !slices.Equal(names, again) {
			t.Fatalf("%q folds to %q", expr, folded)
		}
	})
}
