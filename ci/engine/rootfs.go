package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/internal/hint"
)

const (
	hostCertificates = "/etc/ssl/certs/ca-certificates.crt"
	extraCAs         = "/usr/local/share/ca-certificates"
	// sourceDateEpoch bounds the times inside the workload base, so that the
	// same packages make the same bytes. 2025-01-01; any fixed day would do.
	sourceDateEpoch = "1735689600"
)

// rootfsPackages are in the engine's own root.
func rootfsPackages() []string {
	return strings.Fields(`iptables dnsmasq-base runc containernetworking-plugins fuse-overlayfs fuse3
		ca-certificates git iproute2 procps util-linux mount openssh-client xz-utils pigz`)
}

// basePackages are in the base of workloads: a Python to build for. Compilers
// come with the toolchain image.
func basePackages() []string {
	return strings.Fields("ca-certificates python3 python3-minimal python3-pip python3-venv python3-dev")
}

// rootfsLinks are symbolic links in the engine's root, where the engine looks.
func rootfsLinks() map[string]string {
	links := map[string]string{
		"usr/local/bin/runc":           "/usr/sbin/runc",
		"usr/bin/xtables-legacy-multi": "../sbin/xtables-legacy-multi",
		"usr/bin/xtables-nft-multi":    "../sbin/xtables-nft-multi",
	}
	for _, p := range []string{"bridge", "firewall", "host-local", "loopback", "portmap"} {
		links["opt/cni/bin/"+p] = "/usr/lib/cni/" + p
	}
	return links
}

// rootfsMountPoints are the directories and files that a start mounts over.
func rootfsMountPoints() (dirs, files []string) {
	return []string{"opt/cni/bin", "usr/local/bin", "usr/local/share/dagger/content", "usr/local/share/ca-certificates", "etc/dagger", "var/lib/dagger", "var/lib/cni", "run", "tmp"},
		[]string{"usr/local/bin/dagger-engine", "usr/local/bin/dagger-init", "opt/cni/bin/dnsname"}
}

func rootfsPiece(l Layout, con *console, m mirrors) piece {
	work := l.tmp("rootfs")
	inputs := append([]string{"1", m.sourcesList()}, rootfsPackages()...)
	links := rootfsLinks()
	for _, k := range sorted(links) {
		inputs = append(inputs, k, links[k])
	}
	dirs, files := rootfsMountPoints()
	inputs = append(append(inputs, dirs...), files...)
	return piece{
		name: "rootfs", digest: digestOf(inputs...), outputs: []string{l.Rootfs()},
		build: func(ctx context.Context) error {
			con.say("rootfs", "Debian root file system of the engine: %d packages and what they need", len(rootfsPackages()))
			if err := bootstrap(ctx, l, con, "rootfs", m, rootfsPackages(), work); err != nil {
				return err
			}
			return furnish(work)
		},
		place: func() error {
			if err := os.RemoveAll(l.Rootfs()); err != nil {
				return err
			}
			return os.Rename(work, l.Rootfs())
		},
	}
}

// furnish makes the links and mount points of the engine's root.
func furnish(root string) error {
	dirs, files := rootfsMountPoints()
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(root, f), nil, 0o755); err != nil {
			return err
		}
	}
	links := rootfsLinks()
	for _, name := range sorted(links) {
		p := filepath.Join(root, name)
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(links[name], p); err != nil {
			return err
		}
	}
	return nil
}

func basePiece(l Layout, con *console, m mirrors, cas map[string]string) piece {
	work := l.tmp("base.tar")
	inputs := append([]string{"1", m.sourcesList(), sourceDateEpoch}, baseOptions("")...)
	for _, name := range sorted(cas) {
		inputs = append(inputs, name, cas[name])
	}
	inputs = append(inputs, basePackages()...)
	return piece{
		name: "base", digest: digestOf(inputs...), outputs: []string{l.Base(), l.Base() + ".sha256"},
		build: func(ctx context.Context) error {
			con.say("base", "Debian %s with Python, from which workloads start; %d extra CA certificates of this host", suite, len(cas))
			dir := l.tmp("ca")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			for name, text := range cas {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					return err
				}
			}
			return bootstrap(ctx, l, con, "base", m, basePackages(), work, baseOptions(dir)...)
		},
		place: func() error { return placeBase(l, work) },
	}
}

// baseOptions are the options that shape the workload base; ca is a directory
// of certificates to bake in.
func baseOptions(ca string) []string {
	return []string{
		"--format=tar",
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--customize-hook=cp -r " + quote(ca) + `/. "$1` + extraCAs + `/"`,
		`--customize-hook=chroot "$1" update-ca-certificates`,
		// mmdebstrap's own cleaning leaves directories whose owner depends on
		// whether the way to the scratch directory is open to everybody.
		"--skip=cleanup/apt",
		`--customize-hook=rm -rf "$1/var/lib/apt/lists" "$1/var/cache/apt"; mkdir -p "$1/var/lib/apt/lists" "$1/var/cache/apt/archives"`,
	}
}

func placeBase(l Layout, work string) error {
	f, err := os.Open(work)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(l.Base()), 0o755); err != nil {
		return err
	}
	if err := os.Rename(work, l.Base()); err != nil {
		return err
	}
	return writeFile(l.Base()+".sha256", hex.EncodeToString(h.Sum(nil))+"  "+filepath.Base(l.Base())+"\n", 0o644)
}

// hostCAs reads the certificates the host's owner added. Without them nothing
// in a container could be downloaded where traffic is signed anew on its way.
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

// bootstrap runs mmdebstrap. Its mounts are in a namespace of their own and its
// temporary files in ours: nothing of it can be left on the host.
func bootstrap(ctx context.Context, l Layout, con *console, name string, m mirrors, packages []string, target string, options ...string) error {
	list := l.tmp(name + ".list")
	if err := os.WriteFile(list, []byte(m.sourcesList()), 0o644); err != nil {
		return err
	}
	scratch := l.tmp(name + ".d")
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return err
	}
	args := []string{
		"mmdebstrap", "--mode=root", "--variant=minbase", "--skip=check/qemu",
		`--aptopt=Apt::Install-Recommends "false"`, `--aptopt=Acquire::Retries "3"`,
		"--include=" + strings.Join(packages, ","),
	}
	last := &lastLine{}
	stop := con.beat(name, func() string { return last.get() })
	defer stop()
	err := command{
		args: append(append(args, options...), suite, target, list),
		dir:  "/", env: []string{"TMPDIR=" + scratch, "SOURCE_DATE_EPOCH=" + sourceDateEpoch, "LC_ALL=C.UTF-8"},
		log: l.logOf(name), private: true,
		line: func(s string) {
			if strings.HasPrefix(s, "I: ") {
				last.set(strings.TrimPrefix(s, "I: "))
			}
		},
	}.run(ctx)
	if errors.Is(err, context.Canceled) {
		return err
	}
	return hint.With(err, "mostly the mirror is out of reach or does not carry %s: %s", suite, m.main)
}

// quote makes s one word of a shell line.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
