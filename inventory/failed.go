package inventory

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// maxReport bounds the size of a report, in bytes.
const maxReport = 512 << 20

// failedNodes returns the indexes of the hosts that did not succeed according to the report in file: the JSON of
// --report or --json of a command on nodes.
func (s *selector) failedNodes(file string) []int {
	names, err := readFailed(file)
	if err != nil {
		s.wrong.Add(Position{}, "", "--limit @%s: %v", lineerr.Clip(file), err)
		return nil
	}
	var found []int
	var unknown []string
	for _, name := range names {
		hosts := s.index[name]
		if len(hosts) == 0 {
			unknown = append(unknown, name)
		}
		found = append(found, hosts...)
	}
	switch {
	case len(names) == 0:
		s.wrong.Add(Position{}, "", "--limit @%s: no failed nodes in the report", lineerr.Clip(file))
	case len(unknown) > 0:
		s.wrong.Add(Position{}, "pass the inventory for which the report was written", "--limit @%s: not in %s: %s",
			lineerr.Clip(file), lineerr.Clip(shown(s.inv.Path)), lineerr.Clip(ui.FoldNames(unknown)))
	}
	return found
}

// readFailed returns the names of the nodes of a report that are not ok.
func readFailed(file string) ([]string, error) {
	f, err := os.Open(file)
	var path *fs.PathError
	if errors.As(err, &path) {
		return nil, path.Err
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var report struct {
		Command string
		Nodes   []struct{ Name, Status string }
	}
	notReport := errors.New("not a JSON report on nodes, as written by --report and --json")
	if err := json.NewDecoder(io.LimitReader(f, maxReport)).Decode(&report); err != nil || report.Command == "" {
		return nil, notReport
	}
	var names []string
	for _, n := range report.Nodes {
		switch {
		case strings.TrimSpace(n.Name) == "" || n.Status == "":
			return nil, notReport
		case n.Status != "ok":
			names = append(names, n.Name)
		}
	}
	return names, nil
}
