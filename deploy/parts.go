package deploy

import (
	"context"
	"crypto/sha256"
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

// withOrder is up to how many bytes go along with the order that has use of them: as a
// file of their own they take a dozen ways there and back.
const withOrder = 512 << 10

// inParts is a file that nodes may have parts of.
type inParts struct {
	path  string
	parts []wheel.Part
	tags  []byte // of all parts

	mu    sync.Mutex
	found map[string][]byte // of what is missing: most nodes lack the same
}

// maxFound bounds what is remembered: most is the bytes of withOrder.
const maxFound = 16

// inParts splits a file, once for all nodes; nil is one that cannot be split.
func (d *Deployment) inParts(f upload) *inParts {
	once, _ := d.split.LoadOrStore(f.path, sync.OnceValue(func() *inParts {
		parts, err := wheel.Parts(f.path)
		if err != nil {
			return nil
		}
		var tags []byte
		for _, p := range parts {
			tags = append(tags, p.Tag[:]...)
		}
		return &inParts{path: f.path, parts: parts, tags: tags, found: map[string][]byte{}}
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
	sum, err := p.once("sum", l, func(in io.Reader) ([]byte, error) {
		h := sha256.New()
		_, err := io.Copy(h, in)
		return h.Sum(nil), err
	})
	return hex.EncodeToString(sum), err
}

// content is what a node lacks.
func (p *inParts) content(l lacking) ([]byte, error) {
	return p.once("content", l, io.ReadAll)
}

// once makes something of what a node lacks, and remembers it under a name.
func (p *inParts) once(name string, l lacking, of func(io.Reader) ([]byte, error)) ([]byte, error) {
	key := name + fmt.Sprint(l)
	p.mu.Lock()
	defer p.mu.Unlock()
	if found, ok := p.found[key]; ok {
		return found, nil
	}
	in, err := p.open(l)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	made, err := of(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.path, err)
	}
	if len(p.found) == maxFound {
		clear(p.found)
	}
	p.found[key] = made
	return made, nil
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
	if err := u.change.askWith(ctx, map[string]any{"do": "compare", "role": f.role}, p.tags, &compared); err != nil {
		return false, d.orWhole(u, f, err)
	}
	l, err := p.lacking(compared.Missing)
	if err != nil {
		return false, d.orWhole(u, f, &refusal{error: err})
	}
	if 2*l.bytes() > f.size {
		return false, nil
	}
	sizes := make([]int64, len(l))
	for i, r := range l {
		sizes[i] = r.size
	}
	order := map[string]any{"do": "assemble", "role": f.role, "name": f.name(), "sha256": f.sha256, "sizes": sizes}
	along, data := l.bytes() <= withOrder && d.opt.Bandwidth == nil, []byte(nil)
	if along {
		data, err = p.content(l)
	} else {
		order["parts"], err = d.putLacking(ctx, u, f, p, l)
	}
	if err != nil {
		return false, err
	}
	err = u.change.askWith(ctx, order, data, nil)
	switch {
	case err != nil && !along:
		d.count(f, -l.bytes())
	case err == nil && along:
		u.sent += l.bytes()
		d.count(f, l.bytes())
	}
	if err != nil {
		return false, d.orWhole(u, f, err)
	}
	d.count(f, f.size-l.bytes())
	return true, nil
}

// putLacking sends what a node lacks of a file as one of its own, whose name it returns.
func (d *Deployment) putLacking(ctx context.Context, u *unit, f upload, p *inParts, l lacking) (string, error) {
	sum, err := p.sum(l)
	if err != nil {
		return "", err
	}
	lacks := upload{path: f.path + partsSuffix, sha256: sum, size: l.bytes(), counts: f.counts && !f.spare, open: func() (io.ReadSeekCloser, error) { return p.open(l) }}
	return lacks.name(), d.putFile(ctx, u, lacks)
}

// orWhole is the error that speaks against sending the whole file in its place.
func (d *Deployment) orWhole(u *unit, f upload, err error) error {
	if !errors.As(err, new(*refusal)) {
		return err
	}
	d.watch.note(u, "%v; all of %s is sent", err, f.name())
	return nil
}
