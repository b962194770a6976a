package nightly

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// The names in the folder of a nightly.
const (
	lockName    = "lock"
	stateName   = "state.json"
	wheelsName  = "wheels"  // the builds that are kept
	stagingName = "staging" // where a night's builds are put first
	currentName = "current" // the deployed wheels
	runsName    = "runs"    // the reports of past nights
	reportName  = "report"  // the latest report, plus a suffix
)

// maxNights is how many nights keep their reports.
const maxNights = 60

// Build is a wheel that is kept.
type Build struct {
	Plan    string    `json:"plan_digest"`
	Request string    `json:"request"` // by which it is known without an engine
	Night   string    `json:"night"`   // in which it became the newest of its kind
	Name    string    `json:"name"`
	SHA256  string    `json:"sha256"`
	Size    int64     `json:"size"`
	Seconds float64   `json:"seconds"` // build time, or 0 for a cache hit
	Version string    `json:"version"`
	Commit  string    `json:"commit,omitempty"`
	Source  string    `json:"source"` // as the manifest calls it
	Torch   string    `json:"torch"`
	CUDA    string    `json:"cuda"`
	Python  string    `json:"python"`
	GCC     string    `json:"gcc"`
	Base    string    `json:"base"`
	Archs   []string  `json:"archs"`
	PTX     []string  `json:"ptx"`
	Ops     []string  `json:"ops"`
	Dsbuild string    `json:"dsbuild"`
	BuiltAt time.Time `json:"built_at"`
}

// state is kept between nights.
type state struct {
	Builds map[string][]Build `json:"builds"` // by name of the wheel, the newest first
	// Running is the night in progress.
	Running   string    `json:"running,omitempty"`
	RunningAt time.Time `json:"running_at,omitzero"`

	dir string
}

// loadState reads the state that earlier nights saved.
func loadState(dir string) (*state, error) {
	s := &state{Builds: map[string][]Build{}, dir: dir}
	text, err := os.ReadFile(filepath.Join(dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, stateName), err)
	}
	if s.Builds == nil {
		s.Builds = map[string][]Build{}
	}
	return s, nil
}

func (s *state) saveFile() error {
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(s.dir, stateName), bytes.NewReader(append(text, '\n')), 0o644)
}

// findBuild returns the index of a wheel's kept build with this request or plan and an
// unchanged file, or -1.
func (s *state) findBuild(name, request, plan string) int {
	return slices.IndexFunc(s.Builds[name], func(b Build) bool {
		if !(request != "" && b.Request == request || plan != "" && b.Plan == plan) {
			return false
		}
		sum, _, err := wheel.HashFile(s.buildPath(name, b))
		return err == nil && sum == b.SHA256
	})
}

// makeNewest makes a kept build the newest of its wheel. It drops the newer ones, whose sources were taken back: the index
// would offer them before this one.
func (s *state) makeNewest(name string, i int, night string) Build {
	if i > 0 {
		s.Builds[name] = s.Builds[name][i:]
		s.Builds[name][0].Night = night
	}
	return s.Builds[name][0]
}

// buildFolder returns a build's directory, relative to the nightly's.
func buildFolder(name, plan string) string {
	sum := sha256.Sum256([]byte(name))
	short := unsafe.ReplaceAllString(name, "_")
	return filepath.Join(wheelsName,
		short[:min(len(short), 60)]+"-"+hex.EncodeToString(sum[:4])+"-"+plan[:min(len(plan), 16)])
}

func (s *state) buildPath(name string, b Build) string {
	return filepath.Join(s.dir, buildFolder(name, b.Plan), filepath.Base(b.Name))
}

var unsafe = regexp.MustCompile(`[^A-Za-z0-9._=@+-]+`)

// wheelFiles returns the wheels of all kept builds. Of wheels with equal names it returns the newest.
func (s *state) wheelFiles() []string {
	paths, builtAt := map[string]string{}, map[string]time.Time{}
	for name, builds := range s.Builds {
		for _, b := range builds {
			if at, twice := builtAt[b.Name]; !twice || b.BuiltAt.After(at) {
				builtAt[b.Name], paths[b.Name] = b.BuiltAt, s.buildPath(name, b)
			}
		}
	}
	return slices.Sorted(maps.Values(paths))
}

// addBuild adds a finished wheel to the builds of its kind, as the newest.
func (s *state) addBuild(ctx context.Context, name, request, night string, a wheel.Artifact) (Build, error) {
	m := a.Manifest
	b := Build{
		Plan: m.PlanDigest, Request: request, Night: night,
		Name: m.Name, SHA256: a.SHA256, Size: a.Size, Version: m.Version,
		Commit: m.Source.Commit, Source: m.Source.Ref,
		Torch: m.Torch, CUDA: strings.Join(m.CUDAs(), ", "), Python: m.Python, GCC: m.GCC, Base: m.Base.Ref,
		Archs: m.Archs, PTX: m.PTX, Ops: m.Ops, Dsbuild: m.Dsbuild,
	}
	if m.BuiltAt != nil {
		b.BuiltAt = *m.BuiltAt
	}
	if !a.Cached {
		b.Seconds = a.Seconds
	}
	statement, err := os.ReadFile(a.Path + wheel.ProvenanceSuffix)
	if err != nil {
		return b, err
	}
	stored := pipeline.StoredWheel{File: a.Path, Manifest: m, Provenance: statement}
	if _, err := pipeline.Export(ctx, stored, filepath.Join(s.dir, buildFolder(name, b.Plan))); err != nil {
		return b, err
	}
	others := slices.DeleteFunc(slices.Clone(s.Builds[name]), func(o Build) bool { return o.Plan == b.Plan })
	s.Builds[name] = slices.Concat([]Build{b}, others)
	return b, s.saveFile()
}

// dropOldBuilds drops all but the newest keep builds of each wheel, and all builds of wheels
// that are no longer in the file.
func (s *state) dropOldBuilds(names []string, keep int) {
	for name, all := range s.Builds {
		if !slices.Contains(names, name) {
			delete(s.Builds, name)
			continue
		}
		s.Builds[name] = all[:min(len(all), keep)]
	}
}

// removeUnknown removes the directories of builds that are no longer recorded and of old nights' reports. It
// keeps files and links, which dsbuild did not create, such as NFS's.
func (s *state) removeUnknown() (removed int, err error) {
	known := map[string]bool{}
	for name, all := range s.Builds {
		for _, b := range all {
			known[filepath.Base(buildFolder(name, b.Plan))] = true
		}
	}
	for _, folder := range []string{wheelsName, runsName} {
		entries, err := os.ReadDir(filepath.Join(s.dir, folder)) // sorted: the oldest nights first
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, err
		}
		entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !e.IsDir() || known[e.Name()] })
		if folder == runsName {
			entries = entries[:max(0, len(entries)-maxNights)]
		}
		for _, e := range entries {
			if err := os.RemoveAll(filepath.Join(s.dir, folder, e.Name())); err != nil {
				return removed, err
			}
			removed++
		}
	}
	return removed, nil
}
