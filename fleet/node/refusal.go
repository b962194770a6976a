package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Unchangeable returns the reasons why dsbuild cannot change the environment at all, and a hint.
func (f Facts) Unchangeable() (reasons []nodeerr.Message, hint string) {
	if f.Elsewhere {
		const format = "%s runs Python in another file system, as a container does: its %s (sys.prefix %s) is not the node's"
		why := fmt.Sprintf(format, QuotePath(f.Asked), QuotePath(f.SitePackages), QuotePath(f.Prefix))
		return []nodeerr.Message{{Text: why}}, fault.Set("python", "an interpreter in the node's own file system").String() +
			"; install the wheel in an image when you build the image"
	}
	if why, try := f.Unusable(); why.Text != "" {
		return []nodeerr.Message{why}, try
	}
	if why, try := f.OtherAccount(); why != "" {
		return []nodeerr.Message{{Text: why}}, try
	}
	switch {
	case f.Unreadable: // then nothing in it is known
		why, try := f.NoPermission()
		return []nodeerr.Message{why}, try
	// After an interrupted change the RECORD may be missing: the agent repairs that first.
	case len(f.NoRecord) > 0 && !f.Unfinished:
		const without = "installed DeepSpeed has no RECORD, which a rollback needs: "
		for _, path := range f.NoRecord[:min(len(f.NoRecord), 3)] {
			reasons = append(reasons, nodeerr.Messagef(without+"%s", nodeerr.Own(QuotePath(path))))
		}
		return reasons, HintFor("remove-deepspeed", f.Asked, f)
	case f.ForeignOwner != "":
		owner, prefix, name := QuotePath(f.ForeignOwner), QuotePath(f.Prefix), PlainPath(f.ForeignOwner, "OWNER")
		return []nodeerr.Message{{Text: fmt.Sprintf("environment %s: %s owns a directory on its path, and could redirect what root changes there", prefix, owner)}},
			fault.Set("user", name).String() + ", or " + fault.Set("sudo", name).String()
	}
	return nil, ""
}

// OtherAccount returns the message and the hint for a program that runs Python as another account than the login, which
// sends the files. It returns "" if it does not.
func (f Facts) OtherAccount() (why, hint string) {
	if f.RunsAs == "" {
		return "", ""
	}
	return fmt.Sprintf("%s runs Python as another account than the login: uid %s", QuotePath(f.Asked), PlainVersion(f.RunsAs)),
		fault.Set("sudo", "that account").String() + ", and " + fault.Set("python", "the environment's interpreter itself").String()
}

// NoPermission returns the message and the hint for an environment that this user cannot read and change. It
// returns "" if it can. Another node that shares it may.
func (f Facts) NoPermission() (why nodeerr.Message, hint string) {
	switch {
	case f.ReadOnly && !f.Unreadable:
		return nodeerr.Message{Text: "environment is on a read-only file system: " + QuotePath(f.SitePackages)},
			HintFor("remount", f.Asked, f)
	case f.HomeOwner != "" && (f.Locked == "" || f.LockedBy != "") && !f.Unreadable:
		home, owner := QuotePath(f.Home()), QuotePath(f.HomeOwner)
		return nodeerr.Message{Text: fmt.Sprintf("no write permission for %s, owned by %s", home, owner)},
			fault.Set("user", "that user").String() + "; or chown -R the directory to the environment's owner"
	case f.Writable:
		return nodeerr.Message{}, ""
	}
	path, what, mode := cmp.Or(f.Locked, f.Prefix), "write", "u+w"
	if f.Unreadable {
		what, mode = "read", "u+rwX"
	}
	quoted := nodeerr.Own(QuotePath(path))
	switch {
	case f.LockedBy != "":
		return nodeerr.Messagef("no %s permission for %s, owned by %s", what, quoted, QuotePath(f.LockedBy)),
			fault.Set("user", "that user").String()
	case f.Locked == "":
		return nodeerr.Messagef("no %s permission for %s", what, quoted), fault.Set("user", "the environment's owner").String()
	}
	return nodeerr.Messagef("no %s permission for %s", what, quoted),
		"run on the node: chmod " + mode + " " + PlainPath(path, "PATH")
}

// ForeignCommands returns the message and the hint for commands of wheels that would replace those of another package, or
// files of no package. It returns "" if there are none. commands maps their names to the packages that install them.
func (f Facts) ForeignCommands(commands map[string]string) (why nodeerr.Message, hint string) {
	var reasons []string
	hint = "move them aside on the node, or build a wheel without them"
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		switch owner, taken := f.Taken[name]; {
		case taken && owner == commands[name]:
		case strings.HasPrefix(owner, "/"):
			reasons = append(reasons, fmt.Sprintf("%s belongs to the Python of %s", name, QuotePath(owner)))
			hint = HintFor("another-python", f.Executable, f)
		case taken && owner != "":
			reasons = append(reasons, fmt.Sprintf("%s belongs to %s", name, cmp.Or(PlainVersion(owner), "another package")))
			hint = HintFor("another-package", f.Executable, f)
		case taken && !f.Unfinished: // else it may be DeepSpeed's own, whose RECORD an interrupted change lost
			reasons = append(reasons, name+" belongs to no package")
		}
	}
	if len(reasons) == 0 {
		return nodeerr.Message{}, ""
	}
	return nodeerr.Message{Text: "wheel would overwrite existing commands: " + strings.Join(reasons, ", ")}, hint
}

// roomFactor and roomMargin give the free space that a wheel needs: the upload, the unpacked
// files and their byte code. The old version, moved aside, already has its space.
const (
	roomFactor = 4
	roomMargin = 32 << 20
)

// NeededRoom returns the free space that wheels of size bytes need.
func NeededRoom(size int64) int64 { return roomFactor*size + roomMargin }

// NoRoom returns the message and the hint if the disk of the environment, or of dsbuild's own directory, is too full
// for size bytes of wheels. It returns "" if it is not.
func (f Facts) NoRoom(size int64) (why nodeerr.Message, hint string) {
	need := NeededRoom(size)
	for _, place := range []struct {
		dir  string
		free int64
	}{{f.SitePackages, f.FreeBytes}, {f.Home(), f.FreeTmpBytes}} {
		if place.free < need {
			dir, free := QuotePath(place.dir), nodeerr.Own(ui.Size(place.free))
			return nodeerr.Messagef("not enough space in %s: %s free, %s needed", dir, free, ui.Size(need)),
				"free disk space: df -h " + PlainPath(place.dir, "ENVIRONMENT")
		}
	}
	return nodeerr.Message{}, ""
}
