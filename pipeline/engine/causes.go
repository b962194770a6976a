package engine

import (
	"fmt"
	"strings"
)

// ContainerError reports that an engine's container does not start.
type ContainerError struct {
	Container Container
	Why       string   // the fault
	Lines     []string // its last lines of output
}

// failed returns the error for this container.
func (c Container) failed(why string, lines []string) error {
	return &ContainerError{c, why, lines}
}

func (e *ContainerError) Error() string {
	text := fmt.Sprintf("the engine's container %s %s", e.Container.Name, e.Why)
	if len(e.Lines) > 0 {
		text += "; its last lines:\n    " + strings.Join(e.Lines, "\n    ")
	}
	return text
}

// Hint names the remedy.
func (e *ContainerError) Hint() string {
	said := strings.ToLower(e.Why + "\n" + strings.Join(e.Lines, "\n"))
	for _, c := range causes() {
		for _, sign := range c.signs {
			if strings.Contains(said, sign) {
				return e.Container.fill(c.hint)
			}
		}
	}
	return e.Container.fill("all its output: CLIENT logs NAME; to start it again: CLIENT rm -fv NAME; without an engine: --builder host")
}

// privilegesHint is for a container with too few privileges.
const privilegesHint = "the engine needs a privileged container, which CLIENT does not allow here (rootless, user namespaces, a security policy): use a CLIENT that runs as root, an engine elsewhere (--engine), or no engine: --builder host"

// fullDiskHint is for a container client whose disk is full.
const fullDiskHint = "the disk of CLIENT is full: look with CLIENT system df, free some with CLIENT system prune, or move its data folder; the engine needs 20 GB"

// fill replaces the placeholders in a hint by the container's values.
func (c Container) fill(hint string) string {
	return strings.NewReplacer("CLIENT", c.Client, "NAME", c.Name, "IMAGE", c.Image).Replace(hint)
}

// cause is a known reason why an engine's container does not start: texts in the output that show
// it, in lower case, and the remedy.
type cause struct {
	signs []string
	hint  string
}

// causes returns the causes in the order of the search. The specific ones come first, since most
// failures end with "operation not permitted" somewhere.
func causes() []cause {
	return []cause{
		{
			[]string{"no space left on device", "disk quota exceeded"},
			fullDiskHint,
		},
		{
			[]string{"buildctl", "exec format error", "executable file not found", "unable to start container process: exec:", "a command that was not found", "unknown flag", "flag provided but not defined"},
			"the image is not a Dagger engine, or is for another version or processor; remove container and image, and dsbuild pulls the right one: CLIENT rm -fv NAME && CLIENT rmi IMAGE",
		},
		{
			[]string{"killed for lack of memory", "cannot allocate memory"},
			"give the container's machine more memory (4 GB at least), or build without an engine: --builder host",
		},
		{
			[]string{"cgroup"},
			"the container cannot write control groups: run CLIENT as root on a machine with cgroups mounted at /sys/fs/cgroup; or build without an engine: --builder host",
		},
		{
			[]string{"cannot connect to the docker daemon", "connection refused", "did not answer within", "is the docker daemon running"},
			"start CLIENT again, then repeat the command; the engine keeps the results of finished steps",
		},
		{
			[]string{"does not exist"},
			"CLIENT ps -a lists the containers",
		},
		{
			[]string{"is paused"},
			"CLIENT unpause NAME",
		},
		{
			[]string{"privileged", "operation not permitted", "permission denied", "not allowed", "unable to apply caps"},
			privilegesHint,
		},
	}
}

// ImageError is an engine's image that cannot be pulled.
type ImageError struct {
	Container Container
	Said      string // by the container client
}

func (e *ImageError) Error() string {
	return fmt.Sprintf("%[2]s cannot pull the engine's image %[1]s: %[3]s", e.Container.Image, e.Container.Client, e.Said)
}

// Hint says how else to get it.
func (e *ImageError) Hint() string {
	said := strings.ToLower(e.Said)
	if strings.Contains(said, "no space left on device") {
		return e.Container.fill(fullDiskHint)
	}
	return e.Container.fill("bring the image here: CLIENT load -i engine.tar (from CLIENT save on a machine that has it, or make engine, then bin/ci/engine image engine.tar), or pull it from the site's registry and CLIENT tag it as IMAGE (docs/airgap.md); without an engine: --builder host")
}
