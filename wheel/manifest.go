package wheel

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Manifest describes a wheel and its build. It is written next to the wheel as
// NAME.whl.manifest.json, and into the wheel's dist-info. The copy inside lacks the fields that
// differ from run to run (sha256, size, built_at, builder, dsbuild), so that the wheel is
// reproducible.
type Manifest struct {
	Name    string `json:"name"`    // the wheel's file name
	Version string `json:"version"` // PEP 440 version; a complete build has no local part
	SHA256  string `json:"sha256,omitempty"`
	Size    int64  `json:"size,omitempty"`

	Source Source `json:"source"`

	Ops          []string `json:"ops"`           // found inside
	OpsRequested []string `json:"ops_requested"` // asked for

	// Archs are compute capabilities with SASS inside ("8.0"), PTX those with
	// PTX; both empty for a wheel without device code.
	Archs          []string `json:"archs"`
	PTX            []string `json:"ptx"`
	ArchsRequested []string `json:"archs_requested"`
	// OpArchs lists the device code of ops that do not have all of Archs and PTX, because some ops
	// do not support every GPU.
	OpArchs map[string]DeviceCode `json:"op_archs,omitempty"`

	// Variants lists the builds of ops with several builds.
	Variants []Variant `json:"variants,omitempty"`

	// Requires are the Python packages that ops need on a node, in addition to DeepSpeed's own
	// requirements. METADATA lists them too.
	Requires []string `json:"requires,omitempty"`
	// Patches are the patches applied to DeepSpeed's sources.
	Patches []string `json:"patches,omitempty"`

	// CPU is the required CPU level: x86-64-v2, -v3, -v4 or armv8-a. It implies the machine.
	CPU      string `json:"cpu"`
	Python   string `json:"python"`         // X.Y, or X.Y+ for X.Y and newer
	Torch    string `json:"torch"`          // X.Y.Z; with the stable ABI, the oldest, X.Y
	CUDA     string `json:"cuda"`           // X.Y; with the stable ABI X, or "" (see Variant)
	GCC      string `json:"gcc"`            // full version
	Glibc    string `json:"glibc"`          // symbol floor of the extensions: X.Y
	Musl     bool   `json:"musl,omitempty"` // the extensions need musl instead of glibc; never set for DeepSpeed
	GLIBCXX  string `json:"glibcxx"`        // symbol floor of libstdc++: X.Y.Z
	CXX11ABI bool   `json:"cxx11abi"`       // _GLIBCXX_USE_CXX11_ABI

	// TorchABI is set for a stable-ABI wheel.
	TorchABI *TorchABI `json:"torch_abi,omitempty"`

	// ByteCode describes the byte code file next to the wheel.
	ByteCode *ByteCode `json:"bytecode,omitempty"`

	Toolchain  Toolchain         `json:"toolchain"`
	Base       Base              `json:"base"`
	Env        map[string]string `json:"env"` // the build variables
	Builder    string            `json:"builder,omitempty"`
	PlanDigest string            `json:"plan_digest"`
	Recipe     int               `json:"recipe,omitempty"` // number of the build tag, or zero without a tag
	Dsbuild    string            `json:"dsbuild,omitempty"`
	BuiltAt    *time.Time        `json:"built_at,omitempty"`
}

// ByteCode describes a wheel's sidecar file with ByteCodeSuffix: the byte code of its modules,
// compressed by xz. With it, a node does not compile the modules.
type ByteCode struct {
	Magic  int    `json:"magic"`  // the magic number of Python's byte code
	SHA256 string `json:"sha256"` // of the bytes before compression
}

// DeviceCode lists an op's GPU architectures, as in Manifest.
type DeviceCode struct {
	Archs []string `json:"archs"`
	PTX   []string `json:"ptx"`
}

// KeepDebugVariable is the build variable that keeps debug information.
const KeepDebugVariable = "DSBUILD_KEEP_DEBUG"

// Source is where the DeepSpeed sources came from.
type Source struct {
	Kind   string `json:"kind"` // release, git, path or sdist
	Ref    string `json:"ref"`  // a release's version, or git's URL[@REF]
	Commit string `json:"commit"`
	SHA256 string `json:"sha256"`
}

// CommitURL identifies sources of kind git by their commit: URL@COMMIT.
func (s Source) CommitURL() string {
	repository, _ := SplitGitRef(s.Ref)
	return repository + "@" + s.Commit
}

// SplitGitRef splits URL[@REF]; ref may be "". The host ends at a slash or, in the short form of ssh,
// at a colon: an @ before that belongs to the user name.
func SplitGitRef(arg string) (url, ref string) {
	from := max(0, strings.IndexByte(arg, ':'))
	if scheme, rest, ok := strings.Cut(arg, "://"); ok {
		from = len(scheme) + 3 + max(0, strings.IndexByte(rest, '/'))
	}
	if i := strings.LastIndexByte(arg[from:], '@'); i >= 0 {
		return arg[:from+i], arg[from+i+1:]
	}
	return arg, ""
}

// Toolchain describes the CUDA that compiled a wheel.
type Toolchain struct {
	Name    string `json:"name"`    // as dsbuild toolchains lists it
	Toolkit string `json:"toolkit"` // version of headers and nvcc
	Nvcc    bool   `json:"nvcc"`    // if false, a stand-in that only prints its version
}

// Base is the root file system of the toolchain.
type Base struct {
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
}

// Artifact is a finished wheel on disk.
type Artifact struct {
	Path     string   `json:"path"`
	SHA256   string   `json:"sha256"`
	Size     int64    `json:"size"`
	Cached   bool     `json:"cached"`
	Seconds  float64  `json:"seconds"`
	Manifest Manifest `json:"manifest"`
}

// ParseManifest reads a manifest's JSON.
func ParseManifest(data []byte) (Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	if m.Name == "" || m.Version == "" {
		return Manifest{}, errors.New("manifest: name or version is missing")
	}
	return m, nil
}
