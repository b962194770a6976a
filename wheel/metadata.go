package wheel

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"deps.dev/util/pypi"
)

// maxText limits the size of a wheel's text files (METADATA, manifest), and maxTags the number of
// its tags.
const (
	maxText = 8 << 20 // bytes
	maxTags = 4096
)

const (
	distInfoSuffix = ".dist-info"
	dataSuffix     = ".data"
	nameHint       = "restore the original file name: pip reads the name, version and tags from it"
)

// Metadata is the content of a wheel's METADATA file. Format: the core metadata specifications
// (PyPA).
type Metadata struct {
	Name           string
	Version        string   // PEP 440
	RequiresDist   []string // PEP 508, one requirement each
	RequiresPython string   // PEP 440 specifiers such as ">=3.9,<3.14", or "" for any
}

// ParseMetadata parses a METADATA file. pypi.ParseMetadata is not suitable: it skips
// Requires-Python, logs unknown fields, and treats a second Name as a missing Name.
func ParseMetadata(text []byte) (Metadata, error) {
	var m Metadata
	err := eachField(text, func(name, value string) error {
		switch name {
		case "name":
			return set(&m.Name, value)
		case "version":
			return set(&m.Version, value)
		case "requires-python":
			return set(&m.RequiresPython, value)
		case "requires-dist":
			r, err := parseRequirement(value)
			m.RequiresDist = append(m.RequiresDist, r)
			return err
		}
		return nil
	})
	switch {
	case err != nil:
		return Metadata{}, fmt.Errorf("METADATA: %w", err)
	case !utf8.Valid(text):
		return Metadata{}, errors.New("METADATA: not UTF-8, which pip rejects")
	case !distName.MatchString(m.Name):
		return Metadata{}, fmt.Errorf("METADATA: %.80q is not a valid name", m.Name)
	case !distVersion.MatchString(m.Version):
		return Metadata{}, fmt.Errorf("METADATA: %.80q is not a valid version", m.Version)
	}
	return m, nil
}

// distName matches a name of PEP 508. distVersion does not check all of PEP 440: it only excludes
// characters that no version contains.
var (
	distName    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	distVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+!-]*$`)
	requirement = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)[ \t]*(?:\[[^\]]*\][ \t]*)?([(;<=!~>@]|$)`)
	// directReference matches the text before the URL in a requirement NAME @ URL.
	directReference = regexp.MustCompile(`^([A-Za-z0-9._-]+(?:[ \t]*\[[^\]]*\])?)[ \t]*@[ \t]*`)
)

// set sets a field. A second value is an error.
func set(field *string, value string) error {
	switch {
	case *field != "":
		return errors.New("occurs twice")
	case !utf8.ValidString(value):
		return errors.New("is not UTF-8")
	case strings.ContainsFunc(value, isControl):
		return errors.New("contains a control character")
	}
	*field = value
	return nil
}

// parseRequirement parses a requirement of PEP 508 and normalizes it.
func parseRequirement(value string) (string, error) {
	if !requirement.MatchString(value) || !utf8.ValidString(value) || strings.ContainsFunc(value, isControl) {
		return "", fmt.Errorf("%.80q is not a requirement", value)
	}
	url := ""
	if m := directReference.FindStringSubmatch(value); m != nil {
		// A URL ends at a space: a semicolon before that is a part of it.
		to, marker, _ := strings.Cut(value[len(m[0]):], " ")
		if marker = strings.TrimSpace(marker); marker != "" && marker[0] != ';' {
			return "", fmt.Errorf("%.80q is not a requirement", value)
		}
		value, url = m[1]+marker, " @ "+to
	}
	d, err := pypi.ParseDependency(value)
	if err != nil {
		return "", err
	}
	if d.Constraint != "" && !strings.ContainsRune("<>=!~", rune(d.Constraint[0])) { // "a(b)"
		return "", fmt.Errorf("%.80q is not a requirement", value)
	}
	r := d.Name
	if d.Extras != "" {
		r += "[" + d.Extras + "]"
	}
	r += d.Constraint + url
	switch {
	case d.Environment != "" && url != "":
		r += " ; " + d.Environment
	case d.Environment != "":
		r += "; " + d.Environment
	}
	return r, nil
}

// requirementName returns the name that a requirement of PEP 508 begins with.
func requirementName(r string) string {
	if m := requirement.FindStringSubmatch(r); m != nil {
		return m[1]
	}
	return ""
}

// OnlyWithExtra reports whether a requirement applies only if an extra is requested: its marker is
// extra == "x", alone or joined to other conditions by "and".
func OnlyWithExtra(requirement string) bool {
	semicolon := ";"
	if directReference.MatchString(requirement) {
		semicolon = " ;"
	}
	_, marker, _ := strings.Cut(requirement, semicolon)
	marker = markerText.ReplaceAllString(marker, "x") // a quoted text may contain "and" or "or"
	return !markerOr.MatchString(marker) && slices.ContainsFunc(markerAnd.Split(marker, -1), extraTerm.MatchString)
}

var (
	markerText = regexp.MustCompile(`'[^']+'|"[^"]+"`) // without an extra, its value is ""
	markerOr   = regexp.MustCompile(`\bor\b`)
	markerAnd  = regexp.MustCompile(`\band\b`)
	extraTerm  = regexp.MustCompile(`^[ (]*extra *== *x[ )]*$`)
)

// eachField calls do for each field of an e-mail header, the format of METADATA and WHEEL, with
// its name in lower case and its value unfolded to one line.
func eachField(text []byte, do func(name, value string) error) error {
	// Lines end where Python's e-mail parser ends them.
	rest := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(text))
	for n := 1; rest != "" && rest[0] != '\n'; {
		end := fieldEnd(rest)
		lines := strings.TrimSuffix(rest[:end], "\n")
		rest = rest[end:]
		name, value, ok := strings.Cut(lines, ":")
		if !ok || name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("line %d is not a header field", n)
		}
		values := strings.Split(value, "\n")
		for i, v := range values {
			values[i] = strings.TrimSpace(v)
		}
		if err := do(strings.ToLower(name), strings.TrimSpace(strings.Join(values, " "))); err != nil {
			return fmt.Errorf("line %d: %s: %w", n, name, err)
		}
		n += strings.Count(lines, "\n") + 1
	}
	return nil
}

// fieldEnd returns where the first field of a header ends: at a line that
// does not begin with a space.
func fieldEnd(header string) int {
	for i := 0; ; {
		n := strings.IndexByte(header[i:], '\n')
		if n < 0 {
			return len(header)
		}
		if i += n + 1; i == len(header) || header[i] != ' ' && header[i] != '\t' {
			return i
		}
	}
}

// WheelFile is the content of a wheel's WHEEL file. Format: the binary distribution format
// (PyPA), "File contents".
type WheelFile struct {
	Version       string // of the format: "1.0"
	Generator     string
	RootIsPurelib bool
	Tags          []string // expanded: "cp311-cp311-linux_x86_64"
	Build         string   // build tag, or ""
}

// parseWheelFile reads a WHEEL file.
func parseWheelFile(text []byte) (WheelFile, error) {
	var w WheelFile
	var purelib string
	err := eachField(text, func(name, value string) error {
		switch name {
		case "wheel-version":
			return set(&w.Version, value)
		case "generator":
			// Tools that repair a wheel add a line. Readers use the first.
			w.Generator = cmp.Or(w.Generator, value)
		case "root-is-purelib":
			return set(&purelib, value)
		case "build":
			return set(&w.Build, value)
		case "tag":
			tags, err := expandTags(value)
			if w.Tags = append(w.Tags, tags...); len(w.Tags) > maxTags {
				return fmt.Errorf("more than %d tags", maxTags)
			}
			return err
		}
		return nil
	})
	w.RootIsPurelib = strings.EqualFold(purelib, "true")
	major, _, _ := strings.Cut(w.Version, ".")
	switch n, bad := strconv.Atoi(major); {
	case err != nil:
	case bad != nil:
		err = fmt.Errorf("%.80q is not a Wheel-Version", w.Version)
	case n != 1:
		err = fmt.Errorf("unsupported format %.80s; only format 1 is supported", w.Version)
	}
	if err != nil {
		return WheelFile{}, fmt.Errorf("WHEEL: %w", err)
	}
	return w, nil
}

// FileName holds the parts of a .whl file's name.
type FileName struct {
	Name    string
	Version string
	Build   string   // build tag, or ""
	Tags    []string // expanded: "cp311-cp311-linux_x86_64"
}

// ParseFileName reads the name of a .whl file, without its directory. Format:
// the binary distribution format (PyPA), "File name convention".
func ParseFileName(name string) (FileName, error) {
	const form = "NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl"
	parts := strings.Split(strings.TrimSuffix(name, ".whl"), "-")
	if !strings.HasSuffix(name, ".whl") || len(parts) != 5 && len(parts) != 6 {
		return FileName{}, fmt.Errorf("invalid wheel file name: want %s", form)
	}
	f := FileName{Name: parts[0], Version: parts[1]}
	if len(parts) == 6 {
		f.Build = parts[2]
	}
	tags, err := expandTags(strings.Join(parts[len(parts)-3:], "-"))
	switch {
	case err != nil:
		return FileName{}, fmt.Errorf("invalid wheel file name: want %s: %w", form, err)
	case !distName.MatchString(f.Name) || !distVersion.MatchString(f.Version):
		return FileName{}, fmt.Errorf("invalid wheel file name: want %s: %q, version %q", form, f.Name, f.Version)
	case len(parts) == 6 && !buildTag.MatchString(f.Build):
		return FileName{}, fmt.Errorf("invalid wheel file name: want %s: build tag %q", form, f.Build)
	}
	f.Tags = tags
	return f, nil
}

// WithoutBuildTag returns the name of a .whl file without its build tag: it is equal for builds of one wheel.
func WithoutBuildTag(name string) string {
	parts := strings.Split(name, "-")
	if len(parts) == 6 {
		parts = slices.Delete(parts, 2, 3)
	}
	return strings.Join(parts, "-")
}

var (
	buildTag = regexp.MustCompile(`^[0-9][A-Za-z0-9_.]*$`)
	tagSet   = regexp.MustCompile(`^[A-Za-z0-9_.]+-[A-Za-z0-9_.]+-[A-Za-z0-9_.]+$`)
)

// FreeThreaded reports whether a tag belongs to a Python without the global lock, which has a different ABI: "cp313t".
func FreeThreaded(tag string) bool {
	return strings.HasPrefix(tag, "cp") && strings.HasSuffix(tag, "t")
}

// expandTags returns the tags that a compressed set stands for (PEP 425):
// cp38.cp39-abi3-linux_x86_64 is two.
func expandTags(tag string) ([]string, error) {
	if !tagSet.MatchString(tag) {
		return nil, fmt.Errorf("%.80q is not a tag", tag)
	}
	parts := strings.Split(strings.ToLower(tag), "-")
	pythons, abis, platforms := strings.Split(parts[0], "."), strings.Split(parts[1], "."), strings.Split(parts[2], ".")
	if len(pythons)*len(abis)*len(platforms) > maxTags {
		return nil, fmt.Errorf("%.80q stands for more than %d tags", tag, maxTags)
	}
	var tags []string
	for _, python := range pythons {
		for _, abi := range abis {
			for _, platform := range platforms {
				tags = append(tags, python+"-"+abi+"-"+platform)
			}
		}
	}
	return tags, nil
}

// compareTags describes every difference between the tags in a wheel's file name and in its WHEEL file.
func compareTags(f FileName, w WheelFile) []string {
	var findings []string
	for _, t := range tagsMissing(f.Tags, w.Tags) {
		findings = append(findings, "the file name has tag "+t+", but WHEEL does not")
	}
	for _, t := range tagsMissing(w.Tags, f.Tags) {
		findings = append(findings, "WHEEL has tag "+t+", but the file name does not")
	}
	if f.Build != w.Build && w.Build != "" { // renaming a wheel also adds a build number
		findings = append(findings, fmt.Sprintf("the file name has build %.80q, but WHEEL has %.80q", f.Build, w.Build))
	}
	return findings
}

// tagsMissing returns the tags that are not in others, without duplicates.
func tagsMissing(tags, others []string) []string {
	have := map[string]bool{}
	for _, t := range others {
		have[t] = true
	}
	var out []string
	for _, t := range tags {
		if !have[t] {
			out = append(out, t)
		}
		have[t] = true
	}
	return out
}

// splitDistInfo returns the name and version in a dist-info directory's name.
func splitDistInfo(dir string) (name, version string, err error) {
	base, ok := strings.CutSuffix(dir, distInfoSuffix)
	name, version = splitBase(base)
	if !ok || !distName.MatchString(name) || !distVersion.MatchString(version) {
		return "", "", fmt.Errorf("%s: its name is not NAME-VERSION%s", dir, distInfoSuffix)
	}
	return name, version, nil
}

// splitBase cuts NAME-VERSION in two.
func splitBase(base string) (name, version string) {
	i := max(0, strings.LastIndexByte(base, '-'))
	return base[:i], strings.TrimPrefix(base[i:], "-")
}

// sameName compares names of distributions according to PEP 503.
func sameName(a, b string) bool { return pypi.CanonPackageName(a) == pypi.CanonPackageName(b) }

// sameVersion compares versions according to PEP 440. In the names of files and
// directories "_" stands for "-".
func sameVersion(a, b string) bool {
	canon := func(v string) string { return pypi.CanonVersion(strings.ToLower(strings.ReplaceAll(v, "_", "-"))) }
	return canon(a) == canon(b)
}

// addsLocal reports whether version is public with a local part: 2.7.4+cu12torch2.6 and 2.7.4.
// Some projects put the local part only into the file's name, and installers accept such wheels.
func addsLocal(version, public string) bool {
	release, local, ok := strings.Cut(strings.ReplaceAll(version, "_", "-"), "+")
	return ok && local != "" && !strings.Contains(public, "+") && sameVersion(release, public)
}

// MetadataText returns the METADATA file unchanged.
func (a *Archive) MetadataText() ([]byte, error) {
	text, err := a.ReadFile(a.inDistInfo("METADATA"), maxText)
	if err != nil {
		return nil, a.damagedError(err)
	}
	return text, nil
}

// Metadata reads the METADATA file. Its distribution must match the dist-info directory's name.
func (a *Archive) Metadata() (Metadata, error) {
	text, err := a.MetadataText()
	if err != nil {
		return Metadata{}, err
	}
	m, err := ParseMetadata(text)
	if err != nil {
		return Metadata{}, a.damagedError(err)
	}
	name, version, err := splitDistInfo(a.distInfo)
	if err == nil && !(sameName(m.Name, name) && sameVersion(m.Version, version)) {
		err = fmt.Errorf("METADATA is for %s %s, but the directory is %s", m.Name, m.Version, a.distInfo)
	}
	if err != nil {
		return Metadata{}, a.damagedError(err)
	}
	return m, nil
}

// WheelFile reads the WHEEL file.
func (a *Archive) WheelFile() (WheelFile, error) {
	text, err := a.ReadFile(a.inDistInfo("WHEEL"), maxText)
	if err != nil {
		return WheelFile{}, a.damagedError(err)
	}
	w, err := parseWheelFile(text)
	if err != nil {
		return WheelFile{}, a.damagedError(err)
	}
	return w, nil
}

// damagedError returns the error for an archive with invalid content.
func (a *Archive) damagedError(err error) error {
	return fileError(a.path, err, damagedHint)
}

// inDistInfo returns the path of a file in the dist-info directory.
func (a *Archive) inDistInfo(name string) string { return path.Join(a.distInfo, name) }
