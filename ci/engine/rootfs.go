package main

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

const (
	hostCertificates = "/etc/ssl/certs/ca-certificates.crt"
	extraCAs         = "/usr/local/share/ca-certificates"
	// sourceDateEpoch limits the times inside the workload base, to make it reproducible. It is
	// 2025-01-01; any fixed day would do.
	sourceDateEpoch = "1735689600"
)

// rootfsPackages are the packages in the engine's own root.
func rootfsPackages() []string {
	return strings.Fields(`iptables dnsmasq-base runc containernetworking-plugins fuse-overlayfs fuse3
		ca-certificates git iproute2 procps util-linux mount openssh-client xz-utils pigz`)
}

// rootfsLinks are symbolic links in the engine's root, at the paths that the engine uses.
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

// rootfsMountPoints are the directories and files over which a start mounts.
func rootfsMountPoints() (dirs, files []string) {
	return []string{"opt/cni/bin", "usr/local/bin", "usr/local/share/dagger/content", "usr/local/share/ca-certificates", "etc/dagger", "var/lib/dagger", "var/lib/cni", "run", "tmp"},
		[]string{"usr/local/bin/dagger-engine", "usr/local/bin/dagger-init", "opt/cni/bin/dnsname"}
}

func rootfsPiece(l Layout, con *console, m mirrors) piece {
	work := l.tmp("rootfs")
	inputs := append([]string{"1", m.sourcesList(engineSuite)}, rootfsPackages()...)
	links := rootfsLinks()
	for _, k := range slices.Sorted(maps.Keys(links)) {
		inputs = append(inputs, k, links[k])
	}
	dirs, files := rootfsMountPoints()
	inputs = append(append(inputs, dirs...), files...)
	return piece{
		name: "rootfs", inUse: true, digest: digestOf(inputs...), outputs: []string{l.Rootfs()},
		build: func(ctx context.Context) error {
			con.printLine("rootfs", "Debian root file system of the engine: %d packages and their dependencies", len(rootfsPackages()))
			if err := bootstrapDebian(ctx, l, con, source{"rootfs", engineSuite, m.sourcesList(engineSuite)}, rootfsPackages(), work, "--variant=minbase"); err != nil {
				return err
			}
			return fillRoot(work)
		},
		place: func() error {
			if err := os.RemoveAll(l.Rootfs()); err != nil {
				return err
			}
			return os.Rename(work, l.Rootfs())
		},
	}
}

// fillRoot makes the links and mount points of the engine's root.
func fillRoot(root string) error {
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
	for _, name := range slices.Sorted(maps.Keys(links)) {
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

// source is the release and the mirrors of a root file system.
type source struct {
	name  string // of the piece
	suite string
	list  string // the text of its sources.list
}

// bootstrapDebian runs mmdebstrap. Its mounts are in a separate namespace and its temporary files
// in the engine's directory, so it leaves nothing on the host.
func bootstrapDebian(ctx context.Context, l Layout, con *console, src source, packages []string, target string, options ...string) error {
	scratch := l.tmp(src.name + ".d")
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return err
	}
	list := filepath.Join(scratch, "base.list") // the result contains the file's name
	if err := os.WriteFile(list, []byte(src.list), 0o644); err != nil {
		return err
	}
	args := []string{
		"mmdebstrap", "--mode=root", "--skip=check/qemu",
		`--aptopt=Apt::Install-Recommends "false"`, `--aptopt=Acquire::Retries "3"`,
		"--include=" + strings.Join(packages, ","),
	}
	said := &output{}
	stop := con.reportProgress(src.name, said.last)
	defer stop()
	err := command{
		args: append(append(args, options...), src.suite, target, list),
		dir:  "/", env: append(aptProxies(os.Environ(), askApt), "TMPDIR="+scratch, "SOURCE_DATE_EPOCH="+sourceDateEpoch, "LC_ALL=C.UTF-8"),
		log: l.logOf(src.name), aside: true,
		line: func(s string) {
			if strings.HasPrefix(s, "I: ") {
				said.add(strings.TrimPrefix(s, "I: "))
			}
		},
	}.runCommand(ctx)
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fault.WithHint(err, "usually a mirror is out of reach or does not have %s:\n%s", src.suite, strings.TrimSpace(src.list))
}

// quoteShell quotes s as one word of a shell line.
func quoteShell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
