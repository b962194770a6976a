package node

import (
	"path"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// adviceTexts returns the hints for errors on a node, by the code that the node's program sends
// with the error. The node sends only the code, never the text: a user trusts a hint as dsbuild's
// own, and it may hold a command to run. python and environment are the node's, from the inventory.
func adviceTexts(python, environment string) map[string]string {
	return map[string]string{
		"accelerator":          "is DS_ACCELERATOR set on this node?",
		"another-package":      "uninstall that package there, or build a wheel without that file",
		"code-of-package":      "uninstall that package if it must not change DeepSpeed; a deploy leaves its files alone",
		"deploy-again":         "deploy again",
		"deploy-bundle":        "deploy again with --deps bundle",
		"deploy-force":         "something changed them after the installation; deploy with --force",
		"deploy-wanted":        "deploy the DeepSpeed you want instead",
		"disk":                 "look for errors of the node's disk: dmesg",
		"env-force":            "make it anew: dsbuild env deploy with --force",
		"file-locks":           "the file system of the environment must have file locks (NFS: mount without nolock)",
		"in-the-way":           "move it away there, or build a wheel without that file",
		"installs-elsewhere":   "does this Python install packages into a folder that it does not import from?",
		"look-at-kept":         "nothing was touched; " + environment + "/.dsbuild/kept-* is what a change had moved aside; if there is none, remove change.json and deploy again",
		"no-room":              "make room on the node: df -h " + environment + "; df -i " + environment + "; quota",
		"noexec":               "is the folder on a file system that is mounted noexec? Set folder: in environment.yaml",
		"not-accepted":         "another program changes this environment at the same time: end it, then deploy again",
		"one-environment-back": "a node keeps only the environment before the last switch",
		"one-step-back":        "a node keeps only the version that the last deploy replaced",
		"other-installation":   "this node sees another installation, or something changed it; deploy again",
		"remove-deepspeed":     "uninstall it there: " + python + " -m pip uninstall deepspeed; pip refuses a dist-info without RECORD: remove that folder by hand",
		"removed":              "was it removed since?",
		"replace-by-hand":      "remove it there first, or install a suitable version with the tool that installed this one",
		"same-path":            "where exec_prefix enters a container, its Python must see the same path as the node",
		"several":              "an installation was interrupted: remove both (" + python + " -m pip uninstall deepspeed, twice), then deploy again",
		"shadow":               "remove it, or take its folder off sys.path",
		"shadow-pythonpath":    "PYTHONPATH puts it first: take its folder out",
		"shadow-user":          "it is in this user's own packages: there run " + python + " -m pip uninstall deepspeed, or set PYTHONNOUSERSITE=1",
		"unsafe-place":         "chmod go-w what is yours there, or set folder: in environment.yaml to a folder of your own below folders that only root changes",
		"too-many-files":       "look into the deepspeed folder of its site-packages",
		"torch-differs":        "torch, CUDA or the accelerator differ from the wheel's",
		"wait":                 "wait for it to end, then run again",
	}
}

// AdviceFor returns the hint for a code that a node sent, "" for a code that dsbuild does not know. python is the
// node's in the inventory.
func AdviceFor(code, python string) string {
	environment := "ENVIRONMENT"
	if strings.HasPrefix(python, "/") && path.Base(path.Dir(python)) == "bin" {
		environment = path.Dir(path.Dir(python))
	}
	return adviceTexts(PlainPath(python, "python"), PlainPath(environment, "the environment"))[code]
}

// WithAdvice adds to an error of a node the hint for the code that the node sent with it.
func WithAdvice(err error, code, python string) error {
	return fault.AddHint(err, AdviceFor(code, python))
}
