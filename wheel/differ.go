package wheel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
)

// Differ lists the differences between the files of two wheels, by their sizes and checksums.
func Differ(a, b string) ([]string, error) {
	left, err := members(a)
	if err != nil {
		return nil, err
	}
	right, err := members(b)
	if err != nil {
		return nil, err
	}
	var out []string
	for name, m := range left {
		other, there := right[name]
		switch {
		case !there:
			out = append(out, name+" is missing")
		case other.Size != m.Size:
			out = append(out, fmt.Sprintf("%s has %d bytes, not %d", name, other.Size, m.Size))
		case other.sum != m.sum:
			out = append(out, name+" has other bytes")
		}
	}
	for name := range right {
		if _, there := left[name]; !there {
			out = append(out, name+" is new")
		}
	}
	slices.Sort(out)
	return out, nil
}

// content is the size of a file in a wheel, and the digest of its bytes.
type content struct {
	Size int64
	sum  string
}

// members returns the files of a wheel by their names.
func members(file string) (map[string]content, error) {
	a, err := Open(file)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	all := map[string]content{}
	for _, m := range a.Members() {
		sum, err := HashMember(a, m.Name)
		if err != nil {
			return nil, err
		}
		all[m.Name] = content{m.Size, sum}
	}
	return all, nil
}

// HashMember returns the sha256 of a file in a wheel, in hex.
func HashMember(a *Archive, name string) (string, error) {
	r, err := a.Open(name)
	if err != nil {
		return "", err
	}
	defer r.Close()
	h := sha256.New()
	_, err = io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), err
}
