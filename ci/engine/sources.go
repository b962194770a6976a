package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// engineSuite is the Debian release of the engine's own root.
const engineSuite = "bookworm"

// keyring holds the keys of every Debian release still supported.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// mirrors are the addresses from which this host gets Debian.
type mirrors struct{ main, security string }

// releaseFile is a line of apt-get update --print-uris: the mirror and the suite of a source.
var releaseFile = regexp.MustCompile(`(?m)^'(\S+://\S+?)/*/dists/(\S+)/InRelease' `)

// hostMirrors asks apt for the mirrors in the host's package sources, so that the engine's root
// and the workloads use mirrors that the host can reach.
func hostMirrors(ctx context.Context, codename string) (mirrors, error) {
	listed, err := exec.CommandContext(ctx, "apt-get", "update", "--print-uris").Output()
	if err != nil {
		return mirrors{}, fmt.Errorf("asking apt-get for the package sources: %w", err)
	}
	return findMirrors(string(listed), codename)
}

// findMirrors finds the mirrors of a release in apt's list.
func findMirrors(listed, codename string) (m mirrors, err error) {
	for _, found := range releaseFile.FindAllStringSubmatch(listed, -1) {
		switch mirror, suite := found[1], found[2]; {
		case suite == codename && m.main == "" && !strings.Contains(mirror, "security"):
			m.main = mirror
		case suite == codename+"-security" && m.security == "":
			m.security = mirror
		}
	}
	if m.main == "" {
		return m, fmt.Errorf("apt has no package source for %s", codename)
	}
	return m, nil
}

// sourcesList is the sources.list of a new Debian root. It uses the names that security suites
// have since Debian 11.
func (m mirrors) sourcesList(suite string) string {
	line := func(uri, s string) string { return fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, uri, s) }
	text := line(m.main, suite) + line(m.main, suite+"-updates")
	if m.security != "" {
		text += line(m.security, suite+"-security")
	}
	return text
}

// ubuntuList is the sources.list of a new Ubuntu root. It names no key file, because its path
// differs between releases: the root trusts its own keys.
func (m mirrors) ubuntuList(suite string) string {
	line := func(uri, s string) string { return fmt.Sprintf("deb %s %s main universe\n", uri, s) }
	return line(m.main, suite) + line(m.main, suite+"-updates") + line(m.security, suite+"-security")
}
