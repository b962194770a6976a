package wheel

import (
	"archive/zip"
	"bytes"
	"cmp"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"

	"golang.org/x/sync/errgroup"
)

// PackFormat must change when Pack's output for the same input changes. It is part of a plan's
// digest.
const PackFormat = "4"

// StablePackFormat is PackFormat for wheels of the stable ABI.
const StablePackFormat = "3"

// Build describes the environment in which a wheel was compiled, as reported by the build scripts.
type Build struct {
	GCC      string    `json:"gcc"`
	Python   string    `json:"python"`  // X.Y
	Torch    string    `json:"torch"`   // X.Y.Z
	CUDA     string    `json:"cuda"`    // X.Y
	Patches  []string  `json:"patches"` // names of the patches applied to the sources
	Packages []Package `json:"packages"`
	ByteCode *ByteCode `json:"bytecode"` // of the modules, or nil if Python could not pack it

	Record string `json:"-"` // SHA-256 of the finished wheel's RECORD, if known
}

// Package is a package that was installed where a wheel was compiled.
type Package struct {
	PURL   string `json:"purl"`   // pkg:pypi/torch@2.15.0, pkg:deb/debian/gcc-12@12.2.0-14
	File   string `json:"file"`   // the installer's list of its files' hashes
	SHA256 string `json:"sha256"` // of that list

	Beside  bool   `json:"beside,omitempty"`         // from an environment that the build only read
	Archive string `json:"archive_sha256,omitempty"` // SHA-256 of the installed wheel or .deb, if known
}

// ParseBuild reads the JSON of a Build.
func ParseBuild(data []byte) (Build, error) {
	var b Build
	if err := json.Unmarshal(data, &b); err != nil {
		return Build{}, fmt.Errorf("build facts: %w", err)
	}
	if b.Torch == "" || b.Python == "" {
		return Build{}, errors.New("build facts: torch or python is missing")
	}
	return b, nil
}

// Pack creates the finished wheel in dir from a compiled wheel. The finished wheel has the platform
// tag that its code needs, a requirement for the torch minor version that it was compiled for, and
// in its dist-info the manifest, completed from m, and an SBOM. Equal input gives equal bytes.
func Pack(ctx context.Context, compiled, dir string, m Manifest, b Build) (string, error) {
	a, err := Open(compiled)
	if err != nil {
		return "", err
	}
	defer a.Close()
	c, err := a.Inspect(ctx)
	if err != nil {
		return "", err
	}
	platform, err := Platform(c.Floors(), c.Machine())
	if err != nil {
		return "", err
	}
	p := packer{in: a, changed: map[string][]byte{}}
	if err := p.describe(ctx, c, m, b, platform); err != nil {
		return "", fmt.Errorf("%s: %w", compiled, err)
	}
	file := filepath.Join(dir, m.fileName(compiled, platform))
	return file, p.write(ctx, file)
}

// tag returns the tag of a finished wheel. A part that is * stays as in the compiled wheel.
func (m Manifest) tag(platform string) [3]string {
	if m.TorchABI != nil {
		return [3]string{"py3", "none", platform}
	}
	return [3]string{"*", "*", platform}
}

// retagged returns a wheel's file name, or the value of a Tag in WHEEL, with another tag.
func retagged(name string, tag [3]string) string {
	stem, suffix := strings.CutSuffix(name, ".whl")
	parts := strings.Split(stem, "-")
	for i, part := range tag {
		if part != "*" {
			parts[len(parts)-len(tag)+i] = part
		}
	}
	if suffix {
		return strings.Join(parts, "-") + ".whl"
	}
	return strings.Join(parts, "-")
}

// fileName returns the finished wheel's file name: the compiled wheel's, with another tag and with the build tag.
func (m Manifest) fileName(compiled, platform string) string {
	parts := strings.Split(filepath.Base(retagged(compiled, m.tag(platform))), "-")
	if build := m.BuildTag(); build != "" {
		parts = slices.Insert(parts, 2, build)
	}
	return strings.Join(parts, "-")
}

// packer rewrites a wheel with changed and additional files.
type packer struct {
	in      *Archive
	changed map[string][]byte
}

// describe changes the wheel's metadata, and adds its manifest and its SBOM.
func (p *packer) describe(ctx context.Context, c Contents, m Manifest, b Build, platform string) error {
	in := p.in.inDistInfo
	metadata, err := p.in.ReadFile(in("METADATA"), maxText)
	if err != nil {
		return err
	}
	m = m.fillIn(c, b, m.fileName(p.in.path, platform))
	head, body, split := bytes.Cut(metadata, []byte("\n\n"))
	if head, err = pinTorch(head, m); err != nil {
		return err
	}
	// Add requirements after those of METADATA, and the oldest Python of a wheel for several if METADATA names none.
	header := bytes.Clone(bytes.TrimRight(head, "\n"))
	for _, r := range m.Requires {
		header = fmt.Appendf(header, "\nRequires-Dist: %s", r)
	}
	if oldest, several := strings.CutSuffix(m.Python, "+"); several && !requiresPython.Match(head) {
		header = fmt.Appendf(header, "\nRequires-Python: >=%s", oldest)
	}
	header = append(header, '\n')
	if split {
		header = slices.Concat(header, []byte("\n"), body)
	}
	p.changed[in("METADATA")] = header
	tags, err := p.in.ReadFile(in("WHEEL"), maxText)
	if err != nil {
		return err
	}
	tags = tagLine.ReplaceAllFunc(tags, func(line []byte) []byte {
		return []byte(tagField + retagged(strings.TrimPrefix(string(line), tagField), m.tag(platform)))
	})
	if build := m.BuildTag(); build != "" {
		tags = bytes.Replace(tags, []byte("\n"+tagField), []byte("\nBuild: "+build+"\n"+tagField), 1)
	}
	p.changed[in("WHEEL")] = tags
	manifest, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	p.changed[in(ManifestName)] = append(manifest, '\n')
	files, err := p.in.hashes(ctx, c)
	if err != nil {
		return err
	}
	p.changed[in(SBOMName)], err = newSBOM(m, b, c, files)
	return err
}

const tagField = "Tag: "

var (
	tagLine        = regexp.MustCompile(`(?m)^Tag: [^-\r\n]+-[^-\r\n]+-[^-\r\n]+`)
	requiresPython = regexp.MustCompile(`(?mi)^Requires-Python:`)
)

// fillIn fills in the fields that only the compiled wheel and its build environment know.
func (m Manifest) fillIn(c Contents, b Build, name string) Manifest {
	floors := c.Floors()
	m.Name, m.Version = name, c.Version
	m.Ops = c.opNames()
	m.Archs, m.PTX, m.OpArchs = codeOf(c.Extensions)
	m.Variants = slices.Clone(m.Variants)
	for _, found := range c.Variants {
		i := slices.IndexFunc(m.Variants, func(v Variant) bool { return v.Name == found.Name })
		switch {
		case i >= 0:
			m.Variants[i].Archs, m.Variants[i].PTX, m.Variants[i].OpArchs = found.Archs, found.PTX, found.OpArchs
			// The plan does not list an op without device code that loads a CUDA's runtime.
			m.Variants[i].Ops = append(slices.Clone(m.Variants[i].Ops), slices.DeleteFunc(slices.Clone(found.Ops), func(op string) bool {
				return slices.Contains(m.Variants[i].Ops, op)
			})...)
		case found.CUDA != "" && found.CUDA == m.CUDA: // the only CUDA, which the plan does not list
			found.Toolkit = m.Toolchain.Toolkit
			m.Variants = append(m.Variants, found)
		}
	}
	m.Patches, m.ByteCode = b.Patches, b.ByteCode
	m.Glibc, m.GLIBCXX = floors.Glibc, floors.GLIBCXX
	m.GCC, m.CXX11ABI = b.GCC, c.cxx11ABI()
	if m.TorchABI == nil { // else the plan has the targets of the wheel
		m.Python, m.Torch, m.CUDA = b.Python, b.Torch, b.CUDA
	}
	return m
}

// pinTorch narrows the torch requirement in METADATA's fields to the minor version that the ops were compiled for, or to
// versions with the stable ABI. DeepSpeed requires only a minimum, so after an upgrade of torch the ops would not load.
func pinTorch(fields []byte, m Manifest) ([]byte, error) {
	pin, err := m.torchPin()
	if err != nil {
		return nil, err
	}
	if n := len(torchLine.FindAll(fields, -1)); n != 1 {
		return nil, fmt.Errorf("METADATA requires torch %d times without a condition, expected once", n)
	}
	return torchLine.ReplaceAll(fields, []byte("Requires-Dist: "+pin)), nil
}

var torchLine = regexp.MustCompile(`(?m)^Requires-Dist: torch(?:[<>=!~ ][^;\r\n]*)?$`)

// torchPin returns the requirement of torch. With the stable ABI it has no upper bound: the wheel's loader tries a newer
// torch, and rejects a different stable ABI.
func (m Manifest) torchPin() (string, error) {
	if m.TorchABI != nil {
		return "torch>=" + m.TorchABI.Min, nil
	}
	return torchPin(m.Torch)
}

// torchPin returns the requirement for a torch minor version. Vendors ship torch from before a
// release (2.6.0a0), which sorts before that version, so the requirement includes it.
func torchPin(torch string) (string, error) {
	parts := strings.Split(torch, ".")
	if len(parts) < 2 {
		return "", fmt.Errorf("torch %q has no minor version", torch)
	}
	n, err := strconv.Atoi(parts[1])
	if err != nil {
		return "", fmt.Errorf("torch %q: %w", torch, err)
	}
	from := fmt.Sprintf("%s.%d", parts[0], n)
	if public, _, _ := strings.Cut(torch, "+"); strings.ContainsFunc(public, unicode.IsLetter) {
		from = public
	}
	return fmt.Sprintf("torch<%s.%d,>=%s", parts[0], n+1, from), nil
}

// write writes the zip file. The files are sorted, with dist-info last and RECORD at its end. All
// have one time, and their sizes are in the headers.
func (p *packer) write(ctx context.Context, file string) error {
	record := p.in.inDistInfo("RECORD")
	files, err := p.compressed(ctx, p.filesInOrder(record))
	if err != nil {
		return err
	}
	entries := []RecordEntry{}
	for _, f := range files {
		entries = append(entries, f.entry)
	}
	entries = append(entries, RecordEntry{Path: record, Size: -1})
	p.changed[record] = FormatRecord(entries)
	last, err := p.compressed(ctx, []string{record})
	if err != nil {
		return err
	}
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, f := range append(files, last...) {
		w, err := z.CreateRaw(f.header)
		if err == nil {
			_, err = w.Write(f.packed)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.header.Name, err)
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}

// compressed compresses files of the new wheel, one per core in parallel.
func (p *packer) compressed(ctx context.Context, names []string) ([]packedFile, error) {
	files := make([]packedFile, len(names))
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			// Compressors are reused: creating one takes longer than compressing most files.
			deflate, err := flate.NewWriter(nil, flate.BestCompression)
			for i := int(next.Add(1)) - 1; i < len(names) && err == nil; i = int(next.Add(1)) - 1 {
				if err = ctx.Err(); err == nil {
					files[i], err = p.compress(names[i], deflate)
				}
			}
			return err
		})
	}
	return files, g.Wait()
}

// compress returns a file of the new wheel.
func (p *packer) compress(name string, deflate *flate.Writer) (packedFile, error) {
	data, changed := p.changed[name]
	if !changed {
		var err error
		if data, err = p.in.ReadFile(name, maxPacked); err != nil {
			return packedFile{}, err
		}
	}
	// All sizes precede the data, because strict readers require that. The time is the earliest of
	// the zip format, in 1980.
	mode := os.FileMode(0o644)
	if i, ok := p.in.index[name]; ok && (p.in.members[i].Mode&0o111 != 0 || strings.HasSuffix(name, ".so")) {
		mode = 0o755
	}
	var packed bytes.Buffer
	deflate.Reset(&packed)
	_, err := deflate.Write(data)
	if err = errors.Join(err, deflate.Close()); err != nil {
		return packedFile{}, fmt.Errorf("%s: %w", name, err)
	}
	h := &zip.FileHeader{
		Name: name, Method: zip.Deflate, CRC32: crc32.ChecksumIEEE(data),
		CompressedSize64: uint64(packed.Len()), UncompressedSize64: uint64(len(data)),
		ModifiedDate: 1<<5 | 1, //nolint:staticcheck // 1980-01-01 without the extra field that Modified adds
	}
	h.SetMode(mode) // made on Unix
	h.CreatorVersion |= deflateVersion
	h.ReaderVersion = deflateVersion
	if strings.ContainsFunc(name, func(r rune) bool { return r > 126 }) {
		h.Flags |= flagUTF8
	}
	sum := sha256.Sum256(data)
	entry := RecordEntry{Path: name, Algorithm: "sha256", Digest: RecordDigest(sum[:]), Size: int64(len(data))}
	return packedFile{h, packed.Bytes(), entry}, nil
}

// maxPacked limits the size of a packed file, because Pack holds it in memory.
const maxPacked = 2 << 30

// filesInOrder lists the files of the new wheel except RECORD.
func (p *packer) filesInOrder(record string) []string {
	names := map[string]bool{}
	for _, m := range p.in.members {
		names[m.Name] = true
	}
	for name := range p.changed {
		names[name] = true
	}
	delete(names, record)
	info := path.Dir(record) + "/"
	rank := func(name string) int {
		if strings.HasPrefix(name, info) {
			return 1
		}
		return 0
	}
	return slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a, b))
	})
}

// deflateVersion is the version of the zip format that has deflate (APPNOTE 4.4.3.2). CreateRaw
// writes the version in the header that it gets, which would be none.
const deflateVersion = 20

// packedFile is a file's entry in the zip file and in RECORD.
type packedFile struct {
	header *zip.FileHeader
	packed []byte
	entry  RecordEntry
}

// hashes returns the SHA-256 of each of the wheel's extensions, in hex.
func (a *Archive) hashes(ctx context.Context, c Contents) (map[string]string, error) {
	sums := map[string]string{}
	for _, e := range c.Extensions {
		sum, err := a.hashMember(ctx, e.Path)
		if err != nil {
			return nil, err
		}
		sums[e.Path] = sum
	}
	return sums, nil
}
