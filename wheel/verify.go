package wheel

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Verification is the result of comparing a wheel with its own RECORD, metadata and manifest, and
// with its sidecar files.
type Verification struct {
	Path     string    `json:"path"`
	SHA256   string    `json:"sha256"`
	Size     int64     `json:"size"`
	Manifest *Manifest `json:"manifest"` // null: not built by dsbuild
	Contents Contents  `json:"contents"`
	Checks   []Check   `json:"checks"`
}

// Check is one of Verify's checks.
type Check struct {
	Name string `json:"name"`
	// Against names the source of the comparison, or the reason why there is none.
	Against string   `json:"against"`
	Skipped bool     `json:"skipped"` // there is nothing to compare with
	Damage  []string `json:"damage"`  // every difference, in words
}

// Findings are the damage of all checks, each with the name of its check.
func (v Verification) Findings() []string {
	var findings []string
	for _, c := range v.Checks {
		for _, d := range c.Damage {
			findings = append(findings, c.Name+": "+d)
		}
	}
	return findings
}

// Err returns an error with all damage, or nil.
func (v Verification) Err() error {
	if findings := v.Findings(); len(findings) > 0 {
		return auditError(v.Path, findings, "rebuild the wheel, or copy it again from the build machine")
	}
	return nil
}

// Verify opens the wheel at path and compares it with its own claims. The result lists the
// damage; an error means that the file is not a wheel at all.
func Verify(ctx context.Context, path string) (Verification, error) {
	a, err := Open(path)
	if err != nil {
		return Verification{}, err
	}
	defer a.Close()
	v := Verification{Path: path}
	if v.SHA256, v.Size, err = a.hashFile(ctx); err != nil {
		return v, err
	}
	if v.Manifest, err = a.readManifest(); err != nil {
		return v, err
	}
	if v.Contents, err = a.Inspect(ctx); err != nil {
		return v, err
	}
	record, err := a.VerifyRecord(ctx)
	if err != nil {
		return v, err
	}
	metadata, err := v.checkMetadata(a)
	if err != nil {
		return v, err
	}
	tags, err := v.checkTags(a)
	if err != nil {
		return v, err
	}
	commands, err := a.verifyCommands()
	if err != nil {
		return v, err
	}
	metadata.Damage = append(metadata.Damage, commands...)
	v.Checks = []Check{
		v.besideFile("sha256", filepath.Join(filepath.Dir(v.Path), SumsName), v.checkSums),
		v.besideFile("sidecar manifest", v.Path+ManifestSuffix, v.checkManifestBeside),
		v.besideFile("provenance", v.Path+ProvenanceSuffix, func(text []byte) ([]string, error) {
			return checkProvenance(text, filepath.Base(v.Path), v.SHA256, v.Manifest), nil
		}),
		{Name: "RECORD", Against: "every file's hash and size", Damage: record},
		metadata,
		tags,
	}
	v.Checks = append(v.Checks, v.againstManifest()...)
	v.Checks = append(v.Checks, v.checkSBOM(ctx, a))
	if ctx.Err() != nil {
		return v, context.Cause(ctx)
	}
	for i, c := range v.Checks {
		v.Checks[i].Damage = append([]string{}, c.Damage...)
	}
	return v, nil
}

// readManifest returns the manifest inside, or nil.
func (a *Archive) readManifest() (*Manifest, error) {
	text, err := a.ReadFile(a.inDistInfo(ManifestName), maxText)
	if errors.Is(err, errNoMember) {
		return nil, nil //nolint:nilnil // dsbuild did not build the wheel
	}
	if err != nil {
		return nil, a.damagedError(err)
	}
	m, err := ParseManifest(text)
	if err != nil {
		return nil, a.damagedError(err)
	}
	return &m, nil
}

// besideFile runs a check on a sidecar file. It skips a file that is missing, or that does not
// list this wheel (errNotListed).
func (v Verification) besideFile(name, file string, check func([]byte) ([]string, error)) Check {
	c := Check{Name: name, Against: filepath.Base(file)}
	text, err := readBounded(file)
	if err == nil {
		c.Damage, err = check(text)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Check{Name: name, Against: "none next to the wheel", Skipped: true}
	case errors.Is(err, errNotListed):
		return Check{Name: name, Against: c.Against + " does not list this wheel", Skipped: true}
	case err != nil:
		c.Damage = []string{err.Error()}
	}
	return c
}

var errNotListed = errors.New("does not mention this wheel")

func readBounded(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxText {
		return nil, fmt.Errorf("%s: not a file of at most %d bytes", file, maxText)
	}
	return os.ReadFile(file)
}

// SumsName lists hashes of a folder's files in the form sha256sum -c reads.
const SumsName = "SHA256SUMS"

// ParseSum reads a line as sha256sum writes it: the digest, and the cleaned path of the file.
func ParseSum(line string) (sum, name string, ok bool) {
	sum, name, ok = strings.Cut(strings.TrimRight(line, "\r\n"), " ")
	name = strings.TrimPrefix(strings.TrimPrefix(name, " "), "*")
	return sum, path.Clean(name), ok && name != "" && strings.Trim(sum, "0123456789abcdefABCDEF") == ""
}

func (v Verification) checkSums(text []byte) ([]string, error) {
	listed, dir, base := false, filepath.Dir(v.Path), filepath.Base(v.Path)
	for line := range strings.Lines(string(text)) {
		sum, name, ok := ParseSum(line)
		switch {
		case !ok:
		case name == base:
			if listed = true; !strings.EqualFold(sum, v.SHA256) {
				return []string{fmt.Sprintf("lists sha256 %s, but the file has %s", sum, v.SHA256)}, nil
			}
		case strings.HasPrefix(name, base+".") && filepath.IsLocal(name): // a sidecar file
			if has, _, err := HashRegular(filepath.Join(dir, name)); err == nil && !strings.EqualFold(sum, has) {
				return []string{fmt.Sprintf("lists sha256 %s of %s, but the file has %s", sum, name, has)}, nil
			}
		}
	}
	if !listed {
		return nil, errNotListed
	}
	return nil, nil
}

func (v Verification) checkManifestBeside(text []byte) ([]string, error) {
	m, err := ParseManifest(text)
	if err != nil {
		return nil, err
	}
	var damage []string
	if m.SHA256 != v.SHA256 || m.Size != v.Size {
		damage = append(damage, fmt.Sprintf("is for %d bytes with sha256 %s, but the file has %d with %s",
			m.Size, m.SHA256, v.Size, v.SHA256))
	}
	switch {
	case v.Manifest == nil:
		damage = append(damage, "the wheel has no embedded manifest")
	case !sameBuild(m, *v.Manifest):
		damage = append(damage, "differs from the embedded manifest")
	}
	return damage, nil
}

// sameBuild compares two manifests, except for the fields that the manifest inside a wheel lacks.
func sameBuild(a, b Manifest) bool {
	text := func(m Manifest) string {
		m.SHA256, m.Size, m.Builder, m.Dsbuild, m.BuiltAt = "", 0, "", "", nil
		out, err := json.Marshal(m)
		if err != nil {
			panic(err) // only strings and numbers
		}
		return string(out)
	}
	return text(a) == text(b)
}

// checkMetadata compares names and versions, and the torch requirement of METADATA with the
// torch that the ops were compiled for.
func (v Verification) checkMetadata(a *Archive) (Check, error) {
	m, c := v.Manifest, v.Contents
	if m == nil { // name and version were compared when the wheel was opened
		return Check{Name: "metadata", Against: "file name"}, nil
	}
	var damage []string
	if m.Name != filepath.Base(v.Path) {
		damage = append(damage, "file name differs from the manifest's, "+m.Name)
	}
	if m.Version != c.Version {
		damage = append(damage, fmt.Sprintf("METADATA has version %s, but the manifest has %s", c.Version, m.Version))
	}
	if build := m.BuildTag(); a.file.Build != build {
		damage = append(damage, fmt.Sprintf("file name has build tag %q, but the manifest's plan has %q", a.file.Build, build))
	}
	damage = append(damage, m.checkLabel()...)
	pin, err := m.torchPin()
	if err != nil {
		return Check{}, a.damagedError(err)
	}
	torch := []string{}
	for _, r := range c.Requires {
		if sameName(requirementName(r), "torch") && !OnlyWithExtra(r) {
			torch = append(torch, r)
		}
	}
	if !slices.Equal(torch, []string{pin}) {
		damage = append(damage, fmt.Sprintf("METADATA requires %s, but the ops were compiled for %s",
			cmp.Or(strings.Join(torch, ", "), "nothing"), pin))
	}
	for _, r := range m.Requires {
		if !slices.Contains(c.Requires, r) {
			damage = append(damage, "the ops need "+r+", but METADATA does not require it")
		}
	}
	for _, f := range a.members {
		if top, _, _ := strings.Cut(installPath(f.Name), "/"); strings.HasSuffix(strings.ToLower(top), ".egg-info") {
			damage = append(damage, f.Name+" is additional metadata, which Python may read instead")
		}
	}
	for _, said := range []struct{ what, wheel, manifest string }{
		{"torch", c.Torch, m.Torch}, {"CUDA", c.CUDA, m.CUDA}, {"Python", c.Python, m.Python},
	} {
		if said.wheel != "" && Minor(said.wheel) != Minor(said.manifest) {
			damage = append(damage, fmt.Sprintf("the wheel is for %s %s, but the manifest says %s",
				said.what, said.wheel, cmp.Or(said.manifest, "none")))
		}
	}
	return Check{Name: "metadata", Against: "file name and manifest", Damage: damage}, nil
}

// checkTags compares the tags of the file name with those in WHEEL, and the glibc that they promise
// with what the extensions need. Other tags (musllinux, macOS, Windows, another CPU) are not compared
// with code, so the check counts as skipped.
func (v Verification) checkTags(a *Archive) (Check, error) {
	inside, err := a.WheelFile()
	if err != nil {
		return Check{}, err
	}
	name := a.file
	// PyTorch's wheels are renamed to tags that promise more, and their WHEEL still says linux_x86_64.
	promisesMore := func(tag string) bool { return !strings.Contains(tag, "-linux_") }
	if v.Manifest == nil && !slices.ContainsFunc(inside.Tags, promisesMore) {
		name.Tags = slices.Clone(name.Tags)
		for i, t := range name.Tags {
			name.Tags[i] = promise.ReplaceAllString(t, "-linux_$1")
		}
	}
	check := Check{Name: "tags", Against: "WHEEL", Damage: append(compareTags(name, inside), v.Contents.checkPromise()...)}
	for _, t := range v.Contents.Tags {
		platform := t[strings.LastIndex(t, "-")+1:]
		switch glibc, machine := SplitPlatform(platform); {
		case platform == "any" || strings.HasPrefix(platform, "linux_"):
		case glibc == "" || len(policies()[machine]) == 0:
			check.Against = "WHEEL agrees; code is not compared with " + platform
			check.Skipped = len(check.Damage) == 0
			return check, nil
		case len(v.Contents.Extensions) > 0:
			check.Against = "WHEEL and the symbol versions of the extensions"
		}
	}
	return check, nil
}

// checkPromise compares the glibc that tags for the machine of the extensions promise to run on with
// the symbol versions the extensions need.
func (c Contents) checkPromise() []string {
	all := policies()[c.Machine()]
	if len(c.Extensions) == 0 || len(all) == 0 {
		return nil
	}
	f := c.Floors()
	need, err := Platform(f, c.Machine())
	needs, _ := SplitPlatform(need)
	what := fmt.Sprintf("needs glibc %s, %s, which requires %s", cmp.Or(f.Glibc, "nothing"), f.libraries(), need)
	if err != nil {
		// The first glibc that is newer than all policies.
		needs, what = fmt.Sprintf("2.%d", all[len(all)-1].Minor+1), err.Error()
	}
	var damage []string
	for _, t := range c.Tags {
		platform := t[strings.LastIndex(t, "-")+1:]
		promised, machine := SplitPlatform(platform)
		if promised == "" || machine != c.Machine() || CompareVersions(promised, needs) >= 0 {
			continue
		}
		d := "tagged " + platform + ", " + what
		if !slices.Contains(damage, d) { // it is the same for every Python
			damage = append(damage, d)
		}
	}
	return damage
}

// againstManifest compares the contents of the extensions with the manifest.
func (v Verification) againstManifest() []Check {
	names := []string{"ops", "archs", "CPU level", "libraries"}
	checks := make([]Check, len(names))
	for i, name := range names {
		checks[i] = Check{Name: name, Against: "no manifest: not built by dsbuild", Skipped: true}
	}
	if v.Manifest == nil {
		return checks
	}
	m, c := *v.Manifest, v.Contents
	damage := [][]string{m.checkOps(c), m.checkArchs(c), m.checkCPU(c), m.checkFloors(c)}
	for i := range checks {
		checks[i].Against, checks[i].Skipped, checks[i].Damage = "embedded manifest", false, damage[i]
	}
	return checks
}

func (m Manifest) checkOps(c Contents) []string {
	var damage []string
	for _, op := range m.Ops {
		if !slices.Contains(c.Ops, op) {
			damage = append(damage, fmt.Sprintf("op %s is missing", op))
		}
	}
	for _, op := range c.Ops {
		if !slices.Contains(m.Ops, op) {
			damage = append(damage, fmt.Sprintf("op %s is in the wheel, but not in the manifest", op))
		}
	}
	return append(damage, c.compareVariants("the manifest says", m.Variants)...)
}

// checkArchs checks that every op with device code has it for every arch that the manifest lists
// for the op. The device code of one op is no use to another.
func (m Manifest) checkArchs(c Contents) []string {
	var damage []string
	device := false
	for _, e := range c.Extensions {
		if e.Unread != "" {
			damage = append(damage, fmt.Sprintf("%s cannot be read: %s", e.title(), e.Unread))
		}
		code := Variant{Archs: m.Archs, PTX: m.PTX, OpArchs: m.OpArchs}
		if v, _ := variantOf(m.Variants, e); v.CUDA != "" {
			code = v
		}
		_, said := code.OpArchs[e.Op()]
		if has := len(e.SASS)+len(e.PTX) > 0; has || said || code.CUDA != "" {
			device = device || has
			damage = append(damage, e.compareArchs("the manifest says", code.code(e.Op()))...)
		}
	}
	if !device && len(m.Archs)+len(m.PTX) > 0 {
		damage = append(damage, fmt.Sprintf("no op has device code, but the manifest says SASS for %s and PTX for %s",
			archList(m.Archs), archList(m.PTX)))
	}
	if sass, ptx := c.Archs(); len(damage) == 0 && (!slices.Equal(sass, sortedArchs(m.Archs)) || !slices.Equal(ptx, sortedArchs(m.PTX))) {
		damage = append(damage, fmt.Sprintf("all ops have SASS for %s and PTX for %s, but the manifest says %s and %s",
			archList(sass), archList(ptx), archList(m.Archs), archList(m.PTX)))
	}
	return damage
}

// checkCPU compares the highest level found, because the ops of DeepSpeed choose no code at run
// time.
func (m Manifest) checkCPU(c Contents) []string {
	var damage []string
	if levels := m.CPUs(); len(levels) > 0 && levels[0] != CPULevel(m.CPU) {
		damage = append(damage, fmt.Sprintf("the lowest variant is for %s, but the manifest says %s", levels[0], m.CPU))
	}
	for _, e := range c.Extensions {
		v, _ := variantOf(m.Variants, e)
		damage = append(damage, e.compareCPU("the manifest says", CPULevel(cmp.Or(v.CPU, m.CPU)))...)
	}
	return damage
}

func (m Manifest) checkFloors(c Contents) []string {
	var damage []string
	f := c.Floors()
	if f.Glibc != m.Glibc {
		damage = append(damage, fmt.Sprintf("the extensions need glibc %s, but the manifest says %s",
			cmp.Or(f.Glibc, "nothing"), cmp.Or(m.Glibc, "nothing")))
	}
	if f.GLIBCXX != m.GLIBCXX {
		damage = append(damage, fmt.Sprintf("the extensions need GLIBCXX %s, but the manifest says %s",
			cmp.Or(f.GLIBCXX, "nothing"), cmp.Or(m.GLIBCXX, "nothing")))
	}
	for _, e := range c.Extensions {
		damage = append(damage, e.compareTorchABI(m.TorchABI)...)
	}
	if abi := c.cxx11ABI(); abi != m.CXX11ABI {
		damage = append(damage, fmt.Sprintf("the extensions have _GLIBCXX_USE_CXX11_ABI=%t, but the manifest says %t",
			abi, m.CXX11ABI))
	}
	return damage
}

// checkSBOM compares the hashes of the SBOM with the files.
func (v Verification) checkSBOM(ctx context.Context, a *Archive) Check {
	check := Check{Name: "SBOM", Against: SBOMName}
	text, err := a.ReadFile(a.inDistInfo(SBOMName), maxText)
	switch {
	case errors.Is(err, errNoMember) && v.Manifest == nil:
		return Check{Name: "SBOM", Against: "none in the wheel", Skipped: true}
	case errors.Is(err, errNoMember):
		check.Damage = []string{"missing from the wheel"}
		return check
	}
	files := map[string]string{}
	if err == nil {
		files, err = readSBOM(text)
	}
	have, hashErr := a.hashes(ctx, v.Contents)
	if err = errors.Join(err, hashErr); err != nil {
		check.Damage = []string{err.Error()}
		return check
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if have[path] != files[path] {
			check.Damage = append(check.Damage, fmt.Sprintf("lists sha256 %s for %s, but it is %s",
				files[path], path, cmp.Or(have[path], "nothing")))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(have)) {
		if files[path] == "" {
			check.Damage = append(check.Damage, "does not list "+path)
		}
	}
	return check
}
