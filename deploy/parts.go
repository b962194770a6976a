package deploy

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/dsbuild/dsbuild/wheel"
)

// A node keeps the wheel that was installed on it last, and its byte code. Of the next
// one it is sent only the parts that it does not have (agent.py: compare, assemble).

// role is what an upload is to a deploy, as far as nodes keep such a file.
type role string

const (
	wheelRole role = "deepspeed.whl"
	codeRole  role = "bytecode.xz"
)

// partsSuffix ends the name of what a node lacks of a file.
const partsSuffix = ".parts"

// inParts is a file that nodes may have parts of.
type inParts struct {
	path    string
	parts   []wheel.Part
	digests string // of all parts, base64

	mu   sync.Mutex
	sums map[string]string // sha256 by what is missing: most nodes lack the same
}

// maxSums bounds what is remembered.
const maxSums = 64

// inParts splits a file, once for all nodes; nil is one that cannot be split.
func (d *Deployment) inParts(f upload) *inParts {
	once, _ := d.split.LoadOrStore(f.path, sync.OnceValue(func() *inParts {
		parts, err := wheel.Parts(f.path)
		if err != nil {
			return nil
		}
		var digests []byte
		for _, p := range parts {
			digests = append(digests, p.Digest[:]...)
		}
		return &inParts{path: f.path, parts: parts, digests: base64.StdEncoding.EncodeToString(digests), sums: map[string]string{}}
	}))
	return once.(func() *inParts)()
}

// lacking are ranges of a file that a node lacks.
type lacking []struct{ offset, size int64 }

// bytes is how many they are.
func (l lacking) bytes() int64 {
	var n int64
	for _, r := range l {
		n += r.size
	}
	return n
}

// lacking is what a node says it lacks: parts from one to before another.
func (p *inParts) lacking(missing [][2]int) (lacking, error) {
	var out lacking
	after := 0
	for _, m := range missing {
		if m[0] < after || m[1] <= m[0] || m[1] > len(p.parts) {
			return nil, fmt.Errorf("the node lacks the parts %d to %d, of %d", m[0], m[1], len(p.parts))
		}
		after = m[1]
		begin, last := p.parts[m[0]].Offset, p.parts[m[1]-1]
		out = append(out, struct{ offset, size int64 }{begin, last.Offset + last.Size - begin})
	}
	return out, nil
}

// sum is the sha256 of what a node lacks.
func (p *inParts) sum(l lacking) (string, error) {
	key := fmt.Sprint(l)
	p.mu.Lock()
	defer p.mu.Unlock()
	if sum := p.sums[key]; sum != "" {
		return sum, nil
	}
	in, err := p.open(l)
	if err != nil {
		return "", err
	}
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return "", fmt.Errorf("%s: %w", p.path, err)
	}
	if len(p.sums) == maxSums {
		clear(p.sums)
	}
	p.sums[key] = hex.EncodeToString(h.Sum(nil))
	return p.sums[key], nil
}

// open reads what a node lacks as if it were one file.
func (p *inParts) open(l lacking) (io.ReadSeekCloser, error) {
	f, err := os.Open(p.path)
	if err != nil {
		return nil, err
	}
	return &pieces{file: f, ranges: l}, nil
}

// pieces is a file of which only some ranges are there.
type pieces struct {
	file   *os.File
	ranges lacking
	at     int64
}

// Read implements io.Reader.
func (p *pieces) Read(b []byte) (int, error) {
	left := p.at
	for _, r := range p.ranges {
		if left < r.size {
			n, err := p.file.ReadAt(b[:min(int64(len(b)), r.size-left)], r.offset+left)
			p.at += int64(n)
			if n > 0 {
				err = nil
			}
			return n, err
		}
		left -= r.size
	}
	return 0, io.EOF
}

// Seek implements io.Seeker.
func (p *pieces) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += p.at
	case io.SeekEnd:
		offset += p.ranges.bytes()
	}
	if offset < 0 {
		return 0, errors.New("before the beginning")
	}
	p.at = offset
	return offset, nil
}

// Close implements io.Closer.
func (p *pieces) Close() error { return p.file.Close() }

// putParts sends what a node lacks of a file, and has it put the file together with
// what it keeps. done is false where the whole file has to be sent: the node has too
// little of it, or what it kept is not what it was.
func (d *Deployment) putParts(ctx context.Context, u *unit, f upload) (done bool, err error) {
	p := d.inParts(f)
	if p == nil {
		return false, nil
	}
	var compared struct {
		Missing [][2]int `json:"missing"`
	}
	if err := u.change.ask(ctx, map[string]any{"do": "compare", "role": f.role, "parts": p.digests}, &compared); err != nil {
		return false, d.orWhole(u, f, err)
	}
	l, err := p.lacking(compared.Missing)
	if err != nil {
		return false, d.orWhole(u, f, &refusal{why: err.Error()})
	}
	if 2*l.bytes() > f.size {
		return false, nil
	}
	patch := ""
	if len(l) > 0 {
		sum, err := p.sum(l)
		if err != nil {
			return false, err
		}
		lacks := upload{path: f.path + partsSuffix, sha256: sum, size: l.bytes(), counts: f.counts && !f.spare, open: func() (io.ReadSeekCloser, error) { return p.open(l) }}
		if err := d.putFile(ctx, u, lacks); err != nil {
			return false, err
		}
		patch = lacks.name()
	}
	sizes := make([]int64, len(l))
	for i, r := range l {
		sizes[i] = r.size
	}
	order := map[string]any{"do": "assemble", "role": f.role, "name": f.name(), "sha256": f.sha256, "parts": patch, "sizes": sizes}
	if err := u.change.ask(ctx, order, nil); err != nil {
		d.count(f, -l.bytes())
		return false, d.orWhole(u, f, err)
	}
	d.count(f, f.size-l.bytes())
	return true, nil
}

// orWhole is the error that speaks against sending the whole file in its place.
func (d *Deployment) orWhole(u *unit, f upload, err error) error {
	if !errors.As(err, new(*refusal)) {
		return err
	}
	d.watch.note(u, "%v; all of %s is sent", err, f.name())
	return nil
}
