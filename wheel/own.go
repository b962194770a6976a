package wheel

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"strings"

	"deps.dev/util/pypi"
)

// environmentFile matches files of an environment, below its prefix, that belong to the interpreter, to the
// standard library, to conda or to the environment itself. Members that land in site-packages or bin are not
// compared with it.
var environmentFile = regexp.MustCompile(
	`^(pyvenv\.cfg$|conda-meta/|s?bin/|Scripts/|include/python|lib(32|64)?/(python|pypy)|lib/libpython)`)

// ownedCommand matches the commands of the interpreter and of the environment, not others that only begin
// like them: python-argcomplete-check-easy-install-script, activate-global-python-argcomplete.
var ownedCommand = regexp.MustCompile(`(?i)^(((python|pypy)[\d.]*[dtw]*(-config)?|pydoc[\d.]*)(\.exe|\.bat)?|` +
	`(de)?activate(_this)?(\.\w+)?)$`)

// CheckOwnFiles refuses a wheel with a file that is not its own: one of torch, of DeepSpeed, of the interpreter,
// of the standard library or of the environment. It needs no list of installed files: who has one compares that,
// too.
func CheckOwnFiles(a *Archive) error {
	meta, err := a.Metadata()
	if err != nil {
		return err
	}
	entries, err := a.EntryPoints()
	if err != nil {
		return err
	}
	for _, m := range a.Members() {
		scheme, below := Place(m.Name)
		if owner := ownerOf(pypi.CanonPackageName(meta.Name), scheme, below); owner != "" {
			return fmt.Errorf("the wheel of %s would write %s, which belongs to %s", meta.Name, m.Name, owner)
		}
	}
	for _, e := range entries {
		if owner := ownerOf("", "scripts", e.Name); owner != "" {
			return fmt.Errorf("the wheel of %s would write the command %s, which belongs to %s", meta.Name, e.Name, owner)
		}
	}
	return nil
}

// Written returns what installers write for a wheel: for each path, as place and name, what is in the file.
func Written(a *Archive) (map[string]string, error) {
	entries, err := a.EntryPoints()
	if err != nil {
		return nil, err
	}
	written := map[string]string{}
	for _, e := range entries {
		written[path.Join("bin", e.Name)] = e.Module + ":" + e.Object
	}
	record, err := a.record()
	if err != nil {
		return nil, err
	}
	for _, e := range record {
		scheme, below := Place(e.Path)
		place := map[string]string{"": "site-packages", "scripts": "bin"}[scheme]
		written[path.Join(cmp.Or(place, scheme), below)] = e.Algorithm + "=" + strings.TrimRight(e.Digest, "=")
	}
	return written, nil
}

// ownerOf returns to whom a file of a scheme belongs, "" if that may be the wheel's distribution.
func ownerOf(distribution, scheme, below string) string {
	top, _, _ := strings.Cut(below, "/")
	switch scheme {
	case "":
		module, _, _ := strings.Cut(top, ".")
		switch {
		case TorchFolder(module) && !IsTorchPackage(distribution):
			return "torch"
		case module == "deepspeed" && distribution != "deepspeed":
			return "DeepSpeed"
		case module == "sitecustomize" || module == "usercustomize":
			return "the interpreter"
		}
	case "scripts":
		if ownedCommand.MatchString(below) {
			return "the environment"
		}
	case "data":
		if environmentFile.MatchString(below) {
			return "the environment"
		}
	}
	return ""
}
