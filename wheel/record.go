package wheel

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/csv"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// maxRecord bounds a RECORD file: bytes.
const maxRecord = 32 << 20

// RecordEntry is a line of a wheel's RECORD.
type RecordEntry struct {
	Path      string
	Algorithm string // its name in Python's hashlib, such as "sha256"; empty without a hash
	Digest    string // base64 for URLs, without padding
	Size      int64  // in bytes; -1 if unknown
}

// ParseRecord reads a RECORD file. Format: the specification "Recording
// installed projects" and the binary distribution format (PyPA).
func ParseRecord(r io.Reader) ([]RecordEntry, error) {
	limited := &io.LimitedReader{R: r, N: maxRecord + 1}
	in := csv.NewReader(limited)
	in.FieldsPerRecord = 3
	in.ReuseRecord = true
	var entries []RecordEntry
	for {
		fields, err := in.Read()
		switch {
		case limited.N == 0:
			return nil, fmt.Errorf("RECORD: larger than %d bytes", maxRecord)
		case errors.Is(err, io.EOF):
			return entries, nil
		case err != nil:
			return nil, fmt.Errorf("RECORD: %w", err)
		case len(entries) == maxMembers:
			return nil, fmt.Errorf("RECORD: more than %d lines", maxMembers)
		}
		e, err := parseEntry(fields)
		if err != nil {
			line, _ := in.FieldPos(0)
			return nil, fmt.Errorf("RECORD: line %d: %w", line, err)
		}
		entries = append(entries, e)
	}
}

func parseEntry(fields []string) (RecordEntry, error) {
	e := RecordEntry{Path: fields[0], Size: -1}
	if strings.ContainsFunc(strings.Join(fields, ""), isControl) {
		return e, errors.New("control character")
	}
	if fields[1] != "" {
		var ok bool
		if e.Algorithm, e.Digest, ok = strings.Cut(fields[1], "="); !ok || e.Algorithm == "" || e.Digest == "" {
			return e, fmt.Errorf("%q is not a hash", fields[1])
		}
	}
	if fields[2] != "" {
		size, err := strconv.ParseUint(fields[2], 10, 63)
		if err != nil {
			return e, fmt.Errorf("%q is not a size", fields[2])
		}
		e.Size = int64(size)
	}
	return e, nil
}

// FormatRecord returns a RECORD file with the entries in their order.
func FormatRecord(entries []RecordEntry) []byte {
	var b bytes.Buffer
	out := csv.NewWriter(&b)
	for _, e := range entries {
		sum, size := "", ""
		if e.Algorithm != "" {
			sum = e.Algorithm + "=" + e.Digest
		}
		if e.Size >= 0 {
			size = strconv.FormatInt(e.Size, 10)
		}
		_ = out.Write([]string{e.Path, sum, size}) // a buffer takes all
	}
	out.Flush()
	return b.Bytes()
}

// RecordDigest returns a digest in RECORD's format.
func RecordDigest(sum []byte) string { return base64.RawURLEncoding.EncodeToString(sum) }

// record reads the wheel's RECORD.
func (a *Archive) record() ([]RecordEntry, error) {
	in, err := a.Open(a.inDistInfo("RECORD"))
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return ParseRecord(in)
}

// VerifyRecord compares RECORD with the wheel's files and describes every difference. It reads each
// file once. It returns an error only if ctx ends.
func (a *Archive) VerifyRecord(ctx context.Context) ([]string, error) {
	entries, err := a.record()
	if err != nil {
		return []string{err.Error()}, nil
	}
	var findings []string
	listed := make(map[string]bool, len(entries))
	var files []RecordEntry // the entries to compare with the wheel's files
	for _, e := range entries {
		switch why := badName(e.Path); {
		case why != "":
			findings = append(findings, fmt.Sprintf("RECORD lists %.80q, which %s", e.Path, why))
		case listed[e.Path]:
			findings = append(findings, e.Path+": listed twice in RECORD")
		default:
			files = append(files, e)
		}
		listed[e.Path] = true
	}
	for _, m := range a.members {
		if !listed[m.Name] && !a.isSignature(m.Name) {
			findings = append(findings, m.Name+": not listed in RECORD")
		}
	}
	findings = append(findings, a.verifyFiles(ctx, files)...)
	return findings, context.Cause(ctx)
}

// isSignature reports whether a file signs RECORD. It is added after RECORD, so RECORD cannot
// list it.
func (a *Archive) isSignature(name string) bool {
	return name == a.inDistInfo("RECORD.jws") || name == a.inDistInfo("RECORD.p7s")
}

// verifyFiles compares files with their entries in RECORD in parallel, and returns the findings in
// the order of the files.
func (a *Archive) verifyFiles(ctx context.Context, files []RecordEntry) []string {
	order := make([]int, len(files))
	for i := range order {
		order[i] = i
	}
	// The largest files are first, so that no core waits for a large file at the end.
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(files[j].Size, files[i].Size) })
	found := make([]string, len(files))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, i := range order {
		g.Go(func() error {
			found[i] = a.verifyFile(ctx, files[i])
			return nil
		})
	}
	_ = g.Wait() // all errors are in found
	return slices.DeleteFunc(found, func(f string) bool { return f == "" })
}

// verifyFile compares one file with its entry in RECORD and returns the difference, or "".
func (a *Archive) verifyFile(ctx context.Context, e RecordEntry) string {
	i, ok := a.index[e.Path]
	switch {
	case !ok:
		return e.Path + ": listed in RECORD, but not in the wheel"
	case e.Path == a.inDistInfo("RECORD"):
		if e.Algorithm != "" {
			return e.Path + ": contains its own hash, which is impossible"
		}
		return ""
	case e.Size >= 0 && e.Size != a.members[i].Size:
		return fmt.Sprintf("%s: has %d bytes, but RECORD says %d", e.Path, a.members[i].Size, e.Size)
	case e.Algorithm == "":
		if a.isSignature(e.Path) {
			return ""
		}
		return e.Path + ": RECORD has no hash of it"
	}
	sum, err := newHash(e.Algorithm)
	if err != nil {
		return fmt.Sprintf("%s: %v", e.Path, err)
	}
	in, err := a.Open(e.Path)
	if err != nil {
		return err.Error()
	}
	defer in.Close()
	if _, err := io.Copy(sum, contextReader{ctx, in}); err != nil {
		return err.Error()
	}
	if got := RecordDigest(sum.Sum(nil)); got != e.Digest {
		return fmt.Sprintf("%s: its %s is %s, but RECORD says %.100s", e.Path, e.Algorithm, got, e.Digest)
	}
	return ""
}

// newHash returns the hash called name in RECORD. The specification requires SHA-256 or better.
func newHash(name string) (hash.Hash, error) {
	switch name {
	case "sha256":
		return sha256.New(), nil
	case "sha384":
		return sha512.New384(), nil
	case "sha512":
		return sha512.New(), nil
	case "md5", "sha1", "sha224":
		return nil, fmt.Errorf("RECORD uses the weak hash %s", name)
	}
	return nil, fmt.Errorf("RECORD uses the unknown hash %.20q", name)
}
