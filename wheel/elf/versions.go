package elf

import (
	"cmp"
	"slices"
	"strings"
)

// describeVersions reads the symbol versions needed (Linux Standard Base, Core, 10.7.4): a list
// of libraries, each with a list of versions, linked by distances. It follows the links, as the
// loader does.
func (p *parts) describeVersions(o *Object) error {
	if p.versions == nil {
		return nil
	}
	v := &versionList{parts: p, data: p.text[p.versions].String()}
	v.left = len(v.data) / versionSize
	for at, next := uint64(0), uint64(1); next != 0; at += next {
		need, err := v.record(at)
		if err != nil {
			return err
		}
		if version := le.Uint16(need); version != 1 {
			return v.bad(at, "is a record of version %d, 1 is known", version)
		}
		library, err := p.name(p.versions, uint64(le.Uint32(need[4:])))
		if err != nil {
			return err
		}
		names, err := v.names(at+uint64(le.Uint32(need[8:])), int(le.Uint16(need[2:])))
		if err != nil {
			return err
		}
		o.Versions[library] = append(o.Versions[library], names...)
		next = uint64(le.Uint32(need[12:]))
	}
	for library, names := range o.Versions {
		slices.Sort(names)
		o.Versions[library] = slices.Compact(names)
	}
	return nil
}

// versionList holds the bytes of linked records.
type versionList struct {
	*parts
	data string
	left int // records that the section has room for
}

// names returns the n versions of a library. The first is at the offset at.
func (v *versionList) names(at uint64, n int) ([]string, error) {
	names := []string{}
	for i := range n {
		aux, err := v.record(at)
		if err != nil {
			return nil, err
		}
		name, err := v.name(v.versions, uint64(le.Uint32(aux[8:])))
		if err != nil {
			return nil, err
		}
		names = append(names, name)
		next := uint64(le.Uint32(aux[12:]))
		if (next == 0) != (i == n-1) {
			return nil, v.bad(at, "is version %d of %d, the next is %d bytes further", i+1, n, next)
		}
		at += next
	}
	return names, nil
}

func (v *versionList) bad(at uint64, why string, args ...any) error {
	return formatError(v.versions.label(), v.versions.Offset+at, why, args...)
}

// record returns the record at the offset at. It rejects a list with more records than fit in the
// section, because such a list is a cycle.
func (v *versionList) record(at uint64) ([]byte, error) {
	if at+versionSize > uint64(len(v.data)) {
		return nil, v.bad(at, "a record begins here, the section has %d bytes", len(v.data))
	}
	if v.left--; v.left < 0 {
		return nil, v.bad(at, "more records than there is room for: they run in circles")
	}
	return []byte(v.data[at : at+versionSize]), nil
}

// laterVersions maps version names without a number to the glibc release that
// introduced them: elf/Versions and sysdeps/x86*/Versions of its sources.
var laterVersions = map[string]string{
	"GLIBC_ABI_DT_RELR":       "2.36",
	"GLIBC_ABI_GNU2_TLS":      "2.43",
	"GLIBC_ABI_DT_X86_64_PLT": "2.43",
}

// Floor returns the highest version with a prefix that the object needs, such as "2.34" for "GLIBC_".
// It returns "" if it needs none. It ignores names that are not versions, such as GLIBC_PRIVATE and
// CXXABI_TM_1, except those in laterVersions, whose glibc is known.
func (o *Object) Floor(prefix string) string {
	floor := ""
	for _, names := range o.Versions {
		for _, name := range names {
			number, ok := strings.CutPrefix(name, prefix)
			if !ok {
				continue
			}
			if later, ok := laterVersions[name]; ok {
				number = later
			}
			if number != "" && !slices.ContainsFunc(strings.Split(number, "."), func(part string) bool {
				return part == "" || strings.Trim(part, "0123456789") != ""
			}) && CompareVersions(number, floor) > 0 {
				floor = number
			}
		}
	}
	return floor
}

// CompareVersions compares numbers joined by dots, of any length: "2.9" is
// below "2.34", and "2.3" below "2.3.4".
func CompareVersions(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(a, b string) int {
		a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
}
