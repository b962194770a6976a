package wheel

import (
	"bytes"
	"cmp"
	"debug/elf"
	"fmt"
	"io"
	"slices"
	"strings"
)

// maxNamed limits the number of symbols listed per extension.
const maxNamed = 4

// NameNewest finds extensions of the wheel at file that need newer C and C++ libraries than the
// manylinux platform of a glibc has. It sets Newest in each of them.
func (c *Contents) NameNewest(file, glibc string) error {
	floors := PlatformFloors(glibc, c.Machine())
	var archive *Archive
	for i := range c.Extensions {
		e := &c.Extensions[i]
		if floors.offers(e.Floors) {
			continue
		}
		if archive == nil {
			a, err := Open(file)
			if err != nil {
				return err
			}
			defer a.Close()
			archive = a
		}
		var err error
		if e.Newest, err = symbolsAbove(archive, e.Path, floors); err != nil {
			return fmt.Errorf("%s: %w", e.Path, err)
		}
	}
	return nil
}

// symbolsAbove lists the symbols of a member that are newer than the floors, newest first.
func symbolsAbove(a *Archive, member string, floors Floors) ([]string, error) {
	r, err := a.Open(member)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	object, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	imported, err := object.ImportedSymbols()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(imported, func(a, b elf.ImportedSymbol) int {
		return cmp.Or(CompareVersions(versionNumber(b.Version), versionNumber(a.Version)), strings.Compare(a.Name, b.Name))
	})
	floorOf := map[string]string{
		"GLIBC_": floors.Glibc, "GLIBCXX_": floors.GLIBCXX, "CXXABI_": floors.CXXABI, "GCC_": floors.Libgcc,
	}
	var out []string
	for _, s := range imported {
		for prefix, floor := range floorOf {
			if strings.HasPrefix(s.Version, prefix) && CompareVersions(versionNumber(s.Version), floor) > 0 {
				out = append(out, s.Name+"@"+s.Version)
			}
		}
	}
	if len(out) > maxNamed {
		out = append(out[:maxNamed], fmt.Sprintf("%d more", len(out)-maxNamed))
	}
	return out, nil
}

// versionNumber removes the family from a symbol version: "2.34" for GLIBC_2.34.
func versionNumber(version string) string { return version[strings.LastIndex(version, "_")+1:] }
