package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// baseFree is the free disk space needed to make one base.
const baseFree = 3 << 30

// release is a release of Debian or Ubuntu that can be the base of workloads.
type release struct {
	suite, name string
	ubuntu      bool
	more        []string // additional packages
	options     []string // additional options of mmdebstrap
}

// debianReleases lists the releases of the bases, the default first. In Ubuntu, apt is not a required
// package, but it contains Ubuntu's keys. Ubuntu 22.04's Python 3.11 is a release candidate, so no
// wheels are built for it. No wheels are built on Ubuntu 18.04 either, whose Python is 3.6: tests run
// wheels there, because its glibc is older than every build base's.
func debianReleases() []release {
	return []release{
		{suite: defaultBase, name: "Debian 12"},
		{suite: "bullseye", name: "Debian 11", options: []string{recompile}},
		{suite: "trixie", name: "Debian 13"},
		{suite: "bionic", name: "Ubuntu 18.04", ubuntu: true, more: []string{"apt"}, options: []string{keepDashPage}},
		{suite: "jammy", name: "Ubuntu 22.04", ubuntu: true, more: []string{"apt"}},
		{suite: "noble", name: "Ubuntu 24.04", ubuntu: true, more: []string{"apt"}},
		{suite: "resolute", name: "Ubuntu 26.04", ubuntu: true, more: []string{"apt"}},
	}
}

// defaultBase is the base that every installation has.
const defaultBase = "bookworm"

// recompile makes compiled Python modules reproducible. Some Pythons store sets in hash order, which
// differs from run to run, so it recompiles the modules with a fixed hash seed.
const recompile = `--customize-hook=PYTHONHASHSEED=0 chroot "$1" python3 -c "import glob, py_compile
for f in sorted(glob.glob('/usr/**/__pycache__/*.cpython-39.pyc', recursive=True)):
    py_compile.compile(f.replace('__pycache__/', '').replace('.cpython-39.pyc', '.py'), f, doraise=True)"`

// keepDashPage is for an old dash: its installation renames a manual page, and fails if that
// page is missing.
const keepDashPage = "--dpkgopt=path-include=/usr/share/man/man1/sh.1.gz"

// basePackages are in every base: a Python to build for. Compilers come with
// the toolchain image.
func basePackages() []string {
	return strings.Fields("ca-certificates python3 python3-minimal python3-pip python3-venv python3-dev")
}

// suiteError means that a suite is not supported.
type suiteError struct{ suite string }

func (e *suiteError) Error() string {
	return fmt.Sprintf("dsbuild makes no base of the suite %q", e.suite)
}

// Hint lists the suites.
func (e *suiteError) Hint() string {
	var all []string
	for _, r := range debianReleases() {
		all = append(all, r.suite)
	}
	return "the suites are " + strings.Join(all, ", ")
}

// ExitCode is the exit code of wrong usage.
func (e *suiteError) ExitCode() int { return 2 }

func releaseOf(suite string) (release, error) {
	for _, r := range debianReleases() {
		if r.suite == suite {
			return r, nil
		}
	}
	return release{}, &suiteError{suite}
}

// ubuntuMirrors returns Ubuntu's mirrors, or the configured mirror.
func ubuntuMirrors(getenv func(string) string) mirrors {
	if own := getenv("DSBUILD_UBUNTU_MIRROR"); own != "" {
		return mirrors{own, own}
	}
	return mirrors{"http://archive.ubuntu.com/ubuntu", "http://security.ubuntu.com/ubuntu"}
}

// MakeBase prints the path of a release's base. It first makes the base if the base is missing
// or its inputs changed. Printing an existing base needs neither root nor the lock.
func MakeBase(ctx context.Context, l Layout, con *console, stdout io.Writer, suite string) error {
	r, err := releaseOf(suite)
	if err != nil {
		return err
	}
	g, err := readGround(ctx)
	if err != nil {
		return err
	}
	p := basePiece(l, con, g, r)
	if !l.isCurrent(p) {
		err = makeBase(ctx, l, con, p)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, l.Base(suite))
	return nil
}

func makeBase(ctx context.Context, l Layout, con *console, p piece) error {
	if err := checkHost(hostRelease()); err != nil {
		return err
	}
	unlock, err := l.lock(ctx, con)
	if err != nil {
		return err
	}
	defer unlock()
	if l.isCurrent(p) { // another run made it meanwhile
		return nil
	}
	return buildPiece(ctx, l, con, []piece{p}, baseFree)
}

// ground holds the settings that bases inherit from this host.
type ground struct {
	debian mirrors
	ubuntu mirrors
	cas    map[string]string // extra CA certificates by file name
}

func readGround(ctx context.Context) (g ground, err error) {
	g.debian, err = hostMirrors(ctx, parseRelease(hostRelease())["VERSION_CODENAME"])
	if err != nil {
		return g, fault.WithHint(err, "the engine's root and its bases are made from the Debian mirror this host uses: add it to /etc/apt")
	}
	g.ubuntu = ubuntuMirrors(os.Getenv)
	if g.cas, err = hostCAs(extraCAs); err != nil {
		return g, fmt.Errorf("reading the extra CA certificates: %w", err)
	}
	return g, nil
}

// sourceOf returns the source of the base of a release.
func (g ground) sourceOf(r release) source {
	if r.ubuntu {
		return source{baseName(r.suite), r.suite, g.ubuntu.ubuntuList(r.suite)}
	}
	return source{baseName(r.suite), r.suite, g.debian.sourcesList(r.suite)}
}

func baseName(suite string) string { return "base-" + suite }

func basePiece(l Layout, con *console, g ground, r release) piece {
	src := g.sourceOf(r)
	work, packages := l.tmp(src.name+".tar"), append(basePackages(), r.more...)
	inputs := append([]string{"1", src.list, sourceDateEpoch}, baseOptions("")...)
	for _, name := range slices.Sorted(maps.Keys(g.cas)) {
		inputs = append(inputs, name, g.cas[name])
	}
	inputs = append(append(inputs, packages...), r.options...)
	return piece{
		name: src.name, digest: digestOf(inputs...), outputs: []string{l.Base(r.suite)},
		build: func(ctx context.Context) error {
			con.printLine(src.name, "%s (%s) with Python, from which workloads start; %d extra CA certificates of this host", r.name, r.suite, len(g.cas))
			cas := l.tmp(src.name + ".ca")
			if err := writeCAs(cas, g.cas); err != nil {
				return err
			}
			options := append(append([]string{"--variant=minbase"}, baseOptions(cas)...), r.options...)
			if r.ubuntu {
				keys, err := ubuntuKeys(ctx, l, con, g)
				if err != nil {
					return fmt.Errorf("getting the keys of Ubuntu's archive: %w", err)
				}
				options = append(options, "--keyring="+keys)
			}
			return bootstrapDebian(ctx, l, con, src, packages, work, options...)
		},
		place: func() error {
			if err := os.MkdirAll(filepath.Dir(l.Base(r.suite)), 0o755); err != nil {
				return err
			}
			return os.Rename(work, l.Base(r.suite))
		},
	}
}

// keysSuite is the Debian release from which dsbuild takes Ubuntu's keys: Debian 12 has no
// package of them.
const keysSuite = "trixie"

// ubuntuKeys takes the keys of Ubuntu's archive from Debian's package of them, which Debian's
// own keys sign. It installs nothing on the host.
func ubuntuKeys(ctx context.Context, l Layout, con *console, g ground) (string, error) {
	const inside = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
	src := source{"ubuntu-keys", keysSuite, g.debian.sourcesList(keysSuite)}
	work := l.tmp(src.name)
	if err := bootstrapDebian(ctx, l, con, src, []string{"ubuntu-keyring"}, work, "--variant=extract", "--format=directory"); err != nil {
		return "", err
	}
	return filepath.Join(work, inside), nil
}

// baseOptions are the options for the contents of the workload base; ca is a directory of
// certificates to include.
func baseOptions(ca string) []string {
	return []string{
		"--format=tar",
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--customize-hook=cp -r " + quoteShell(ca) + `/. "$1` + extraCAs + `/"`,
		`--customize-hook=chroot "$1" update-ca-certificates`,
		// mmdebstrap's own cleaning leaves directories with an owner that depends on whether
		// all users may enter the scratch directory.
		"--skip=cleanup/apt",
		`--customize-hook=rm -rf "$1/var/lib/apt/lists" "$1/var/cache/apt"; mkdir -p "$1/var/lib/apt/lists" "$1/var/cache/apt/archives"`,
	}
}

// hostCAs reads the host's additional CA certificates. Without them, no container could download
// through a proxy that re-signs the traffic.
func hostCAs(dir string) (map[string]string, error) {
	cas := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && p == dir {
			return nil
		}
		if err != nil || d.IsDir() || filepath.Ext(p) != ".crt" {
			return err
		}
		b, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		cas[strings.ReplaceAll(rel, "/", "-")] = string(b)
		return err
	})
	return cas, err
}

func writeCAs(dir string, cas map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range cas {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
