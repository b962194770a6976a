package wheel

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// VariantName is the file in a wheel's dist-info that says for which machines a variant is.
const VariantName = "variant.json"

// Variant says how a wheel becomes one of several with the same name and version (PEP 825, a
// draft): its file name ends in a label, which variant.json explains.
type Variant struct {
	Version string // of all variants
	Label   string // "": the plain wheel, without variant.json
	JSON    []byte // variant.json
}

var variantLabel = regexp.MustCompile(`^[0-9a-z_.]+$`)

// WriteVariant writes a wheel of dsbuild's again as a variant, into dir, and returns its path and
// METADATA. Its version is the same in METADATA, in DeepSpeed's own files, the manifest and the
// SBOM. The byte code beside the wheel does not belong to the variant. The manifest has the name
// without the label, which is that of a plain wheel. The same input gives the same bytes.
func WriteVariant(ctx context.Context, file, dir string, v Variant) (path string, metadata []byte, err error) {
	m, err := ReadManifest(file)
	if err != nil {
		return "", nil, err
	}
	if v.Label != "" && !variantLabel.MatchString(v.Label) {
		return "", nil, fmt.Errorf("%q is no label of a variant", v.Label)
	}
	a, err := Open(file)
	if err != nil {
		return "", nil, err
	}
	defer a.Close()
	name, _ := splitBase(strings.TrimSuffix(a.distInfo, distInfoSuffix))
	p := packer{in: a, changed: map[string][]byte{}, stem: name + "-" + v.Version}
	old := m.Version
	m.Name = strings.Replace(m.Name, "-"+old+"-", "-"+v.Version+"-", 1)
	m.Version, m.ByteCode, m.SHA256, m.Size = v.Version, nil, "", 0
	if err := p.describeVariant(m, old, v); err != nil {
		return "", nil, err
	}
	base := m.Name
	if v.Label != "" {
		base = strings.TrimSuffix(base, ".whl") + "-" + v.Label + ".whl"
	}
	path = filepath.Join(dir, base)
	return path, p.changed[p.renamed(a.inDistInfo("METADATA"))], p.write(ctx, path)
}

// describeVariant changes the version in every file that says it.
func (p *packer) describeVariant(m Manifest, old string, v Variant) error {
	info := func(name string) string { return p.renamed(p.in.inDistInfo(name)) }
	text, err := p.in.MetadataText()
	if err != nil {
		return err
	}
	p.changed[info("METADATA")] = bytes.Replace(text, []byte("\nVersion: "+old+"\n"), []byte("\nVersion: "+v.Version+"\n"), 1)
	escape := func(version string) string { return strings.ReplaceAll(version, "+", "%2B") }
	for _, name := range []string{"deepspeed/version.py", "deepspeed/git_version_info_installed.py", p.in.inDistInfo(SBOMName)} {
		if _, ok := p.in.index[name]; !ok {
			continue
		}
		if text, err = p.in.ReadFile(name, maxText); err != nil {
			return err
		}
		p.changed[p.renamed(name)] = []byte(strings.NewReplacer(old, v.Version, escape(old), escape(v.Version)).Replace(string(text)))
	}
	if p.changed[info(ManifestName)], err = jsonText(m); err != nil {
		return err
	}
	if v.Label != "" {
		p.changed[info(VariantName)] = v.JSON
	}
	return nil
}
