package image

import (
	"path"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// factsOfLabels returns the facts in dsbuild's own labels, which an earlier run or the Dockerfile of the
// base has set.
func factsOfLabels(labels map[string]string) *evidence {
	e := newEvidence()
	for _, name := range factNames() {
		value := labels[labelPrefix+name]
		if name == FactTorch {
			e.addTorch(value, "label "+labelPrefix+name)
			continue
		}
		e.add(name, value, "label "+labelPrefix+name)
	}
	return e
}

// factsOfConfig returns the facts in an image's configuration: variables, the labels of its
// distribution, and the commands in its history.
func factsOfConfig(c *v1.ConfigFile, glibcOf func(image string) string) *evidence {
	e := newEvidence()
	env := map[string]string{}
	for _, line := range c.Config.Env {
		if name, value, ok := strings.Cut(line, "="); ok {
			env[name] = value
		}
	}
	addVariables(e, env)
	if name := c.Config.Labels["org.opencontainers.image.ref.name"]; name == "ubuntu" {
		e.addRelease(glibcOf, name, c.Config.Labels["org.opencontainers.image.version"], "label org.opencontainers.image.version")
	}
	for _, h := range c.History {
		addCommand(e, h.CreatedBy, glibcOf)
	}
	addSite(e, env)
	return e
}

// addVariables reads variables that the makers of common images set.
func addVariables(e *evidence, env map[string]string) {
	version := func(name string) string { return env[name] }
	e.add(FactPython, version("PYTHON_VERSION"), "variable PYTHON_VERSION")
	e.addTorch(version("PYTORCH_VERSION"), "variable PYTORCH_VERSION")
	if env["NVIDIA_PYTORCH_VERSION"] != "" { // NVIDIA builds its torch for the image's CUDA
		if m := twoNumbers.FindString(env["CUDA_VERSION"]); m != "" {
			e.add(FactCUDA, m, "variable CUDA_VERSION")
		}
	}
}

// addSite derives site-packages: of the virtual environment that is active, or of the official
// images of Python, which install into /usr/local.
func addSite(e *evidence, env map[string]string) {
	python := minor(e.value(FactPython))
	active := path.Clean("/" + env["VIRTUAL_ENV"])
	switch {
	case python == "":
	case env["VIRTUAL_ENV"] != "" && slices.Contains(strings.Split(env["PATH"], ":"), active+"/bin"):
		e.add(FactSitePackages, active+"/lib/python"+python+"/site-packages", "variable VIRTUAL_ENV")
	case env["VIRTUAL_ENV"] == "" && env["PYTHON_SHA256"] != "" && strings.HasPrefix(env["PATH"], "/usr/local/bin:"):
		e.add(FactSitePackages, "/usr/local/lib/python"+python+"/site-packages", "variables of the official images of Python")
	}
}

var (
	twoNumbers = regexp.MustCompile(`^\d+\.\d+`)
	// debuerreotype leaves this comment in the first layer of Debian's images.
	debianRelease = regexp.MustCompile(`^# debian\.sh --arch '[a-z0-9]+' out/ '([a-z]+)'`)
	// A version that an installer was told, of torch or DeepSpeed.
	pinned = regexp.MustCompile(`(?:^|[\s"'])(torch|deepspeed)==([0-9][0-9A-Za-z.+]*)`)
)

// addCommand reads one command of an image's history.
func addCommand(e *evidence, command string, glibcOf func(image string) string) {
	if m := debianRelease.FindStringSubmatch(command); m != nil && glibcOf != nil {
		e.add(FactGlibc, glibcOf("debian:"+m[1]), "Debian "+m[1]+" in the history")
	}
	if !strings.Contains(command, "install") {
		return
	}
	for _, m := range pinned.FindAllStringSubmatch(command, -1) {
		version := strings.TrimRight(m[2], ".") // of torch==2.1.*
		if m[1] == "torch" {
			e.addTorch(version, "an installation in the history")
		} else {
			e.add(FactDeepSpeed, version, "an installation in the history")
		}
	}
}

// minor cuts a version to X.Y.
func minor(version string) string { return twoNumbers.FindString(version) }
