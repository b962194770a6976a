package node

import (
	"cmp"
	"path"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// adviceTexts returns the hints for errors on a node, by the code that the node's program sends
// with the error. The node sends only the code, never the text: a user trusts a hint as dsbuild's
// own, and it may hold a command to run. python, environment and site-packages are words of a shell.
func adviceTexts(python, environment, site string) map[string]string {
	return map[string]string{
		"accelerator":          "unset DS_ACCELERATOR on the node if it is set",
		"another-package":      "uninstall that package on the node, or build a wheel without that file",
		"another-python":       fault.Set("python", "the interpreter of an environment for this Python alone, with torch").String() + "; create one with: " + python + " -m venv DIR",
		"code-of-package":      "uninstall that package if it must not change DeepSpeed; a deploy leaves its files alone",
		"deploy-again":         "deploy again: " + fault.Deploy().String(),
		"deploy-bundle":        "reinstall it: " + fault.Deploy("--deps", "bundle").String(),
		"deploy-bundle-force":  "reinstall them: " + fault.Deploy("--deps", "bundle", "--force").String(),
		"deploy-force":         "files changed after the installation; reinstall them: " + fault.Deploy("--force").String(),
		"deploy-wanted":        "deploy the DeepSpeed version you want; files that other tools installed are kept: " + fault.Deploy().String(),
		"disk":                 "check for disk errors: dmesg",
		"env-permission":       "give this user the right to read and write it on the node, or " + fault.SetFolder("your own directory").String(),
		"env-room":             "free disk space on the node, or " + fault.SetFolder("a directory on another file system").String(),
		"env-force":            "recreate it: " + fault.Deploy("--force").String(),
		"file-locks":           "use a file system with file locks (NFS: mount without nolock)",
		"in-the-way":           "move it aside on the node, or build a wheel without that file",
		"installs-elsewhere":   "check whether this Python installs packages into a directory that it does not import from",
		"lock-elsewhere":       "wait for it to finish, then rerun; if its dsbuild is gone, end the process on its machine (kill -KILL PID): the next run repairs the environment",
		"lock-hung":            "repair the disk or the file server (dmesg on the node), or restart the node, then rerun: the run repairs the environment",
		"lock-stopped":         "on the node: kill -CONT PID; the process continues, or undoes its work and ends if its dsbuild is gone; then rerun",
		"look-at-kept":         "nothing was changed; to keep the files moved aside, rename kept-* next to that file to foreign-*; then remove the file, and rerun",
		"no-room":              "free disk space: df -h " + environment + "; df -i " + environment + "; quota",
		"no-module":            "install this package into the environment on the node, with the tool that created it; " + python + " is its interpreter",
		"no-permission":        "run on the node, as the owner of the files: chmod -R u+rwX,go+rX " + site + "/deepspeed*",
		"noexec":               fault.SetFolder("a file system that is not mounted noexec").String(),
		"not-accepted":         "stop the program that is changing this environment, then deploy again",
		"not-as-root":          fault.Set("user", "the owner").String() + ", or " + fault.Set("sudo", "the owner").String(),
		"one-environment-back": "only the environment before the last deploy is kept; deploy the one you want: " + fault.Deploy().String(),
		"one-version-back":     "only the version before the last deploy is kept; deploy the one you want: " + fault.Deploy().String(),
		"other-installation":   "this node sees another installation, or its files changed; deploy again: " + fault.Deploy().String(),
		"own-file":             "this path must be free: move the existing file aside on the node, then rerun",
		"process-limit":        "raise this account's process limits on the node; list them with: ssh NODE 'ulimit -a'",
		"remount":              "remount it read-write, and check for disk errors: dmesg",
		"remove-deepspeed":     "uninstall it on the node: " + python + " -m pip uninstall deepspeed; if pip refuses for lack of a RECORD, remove the dist-info directory by hand",
		"other-python":         "mount the environment at the path that its commands name, or use separate environments on nodes with other paths",
		"removed":              "reinstall it if it was removed: " + fault.Deploy().String(),
		"replace-by-hand":      "remove it on the node first, or install a suitable version with the tool that installed it",
		"same-path":            "with a container in exec_prefix, mount the environment there at the same path as on the node",
		"several":              "reinstall the wheel, which replaces all of them: " + fault.Deploy().String(),
		"shadow":               "remove its directory from sys.path on the node: look for the .pth file or the startup file that adds it; keep the directory itself, which others may use",
		"shadow-pythonpath":    "remove its directory from PYTHONPATH",
		"shadow-user":          "uninstall it from the user's packages on the node: " + python + " -m pip uninstall deepspeed; or set PYTHONNOUSERSITE=1",
		"unmount":              "unmount it on the node, rerun, and mount it again",
		"unsafe-place":         "run chmod go-w on your directories there, or " + fault.SetFolder("your own directory below directories that only root can change").String(),
		"unsafe-link":          "make it your link to a directory that only you can change, or remove the link",
		"too-many-files":       "inspect the deepspeed directory in its site-packages",
		"torch-differs":        "use the wheel's torch, CUDA and accelerator",
		"wait":                 "wait for it to finish, then rerun",
	}
}

// HintFor returns the hint for a code that a node sent. It returns "" for an unknown code. A code may end with
// a colon and the number of a process, which the hint names. python is the node's in the inventory. If that is a command
// name, the hint has the interpreter that answered: by this name, the shell of a user may find a different Python.
func HintFor(code, python string, f Facts) string {
	environment := "ENVIRONMENT"
	if !strings.Contains(python, "/") {
		python = cmp.Or(f.Executable, python)
	}
	if strings.HasPrefix(python, "/") && path.Base(path.Dir(python)) == "bin" {
		environment = path.Dir(path.Dir(python))
	}
	code, pid, numbered := strings.Cut(code, ":")
	text := adviceTexts(PlainPath(python, "PYTHON"), PlainPath(environment, "ENVIRONMENT"), PlainPath(f.SitePackages, "SITE-PACKAGES"))[code]
	if n, err := strconv.Atoi(pid); err == nil && n > 0 {
		return strings.ReplaceAll(text, "PID", pid)
	} else if numbered {
		return ""
	}
	return text
}

// WithAdvice adds to an error of a node the hint for the code that the node sent with it.
func WithAdvice(err error, code, python string, facts *Facts) error {
	if facts == nil {
		facts = &Facts{}
	}
	return fault.AddHint(err, HintFor(code, python, *facts))
}
