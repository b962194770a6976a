package wheel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
)

// Diff lists the differences between the files of two wheels, by their sizes and checksums.
func Diff(ctx context.Context, a, b string) ([]string, error) {
	left, err := contentOf(ctx, a)
	if err != nil {
		return nil, err
	}
	right, err := contentOf(ctx, b)
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

// content is a file of a wheel with the sha256 of its bytes.
type content struct {
	Member
	sum string
}

// contentOf returns the files of a wheel by name.
func contentOf(ctx context.Context, file string) (map[string]content, error) {
	a, err := Open(file)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	all := map[string]content{}
	for _, m := range a.members {
		sum, err := a.hashMember(ctx, m.Name)
		if err != nil {
			return nil, err
		}
		all[m.Name] = content{m, sum}
	}
	return all, nil
}

// hashMember returns the sha256 of a file in the wheel, in hex.
func (a *Archive) hashMember(ctx context.Context, name string) (string, error) {
	r, err := a.Open(name)
	if err != nil {
		return "", err
	}
	defer r.Close()
	h := sha256.New()
	_, err = io.Copy(h, contextReader{ctx, r})
	return hex.EncodeToString(h.Sum(nil)), err
}
