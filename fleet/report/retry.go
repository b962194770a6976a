package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// PastReport is the report of an earlier run, reduced to the part that a retry needs: its nodes, and
// which of them were not ok.
type PastReport struct {
	file  string
	names []string        // of all nodes
	notOK map[string]bool // by name
}

// maxPast bounds the size of a report in bytes; a report on 2,000 nodes has some 10 MB.
const maxPast = 256 << 20

// LoadPast reads the JSON report of a command, such as "deploy". It returns a *diagnostic.Error if
// the report is damaged or belongs to another command.
func LoadPast(path, command string) (*PastReport, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &diagnostic.Error{Problems: []diagnostic.Problem{{Message: fmt.Sprintf("no report: %v", err)}}, Cause: err}
	}
	defer f.Close()
	p, err := readPast(f, command)
	if err != nil {
		return nil, wrongReport(path, err, "name a report that dsbuild "+command+" wrote with --report FILE.json or --json")
	}
	p.file = path
	return p, nil
}

// wrongReport is the error for a file that cannot be used.
func wrongReport(file string, err error, hint string) error {
	return &diagnostic.Error{Cause: err, Problems: []diagnostic.Problem{{Position: diagnostic.Position{File: file}, Message: err.Error(), Hint: hint}}}
}

// readPast reads and checks a report of a command.
func readPast(r io.Reader, command string) (*PastReport, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxPast+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxPast:
		return nil, errors.New("it is larger than any report")
	}
	var report struct {
		Command string `json:"command"`
		Nodes   []struct {
			Name   string `json:"name"`
			Status Status `json:"status"`
		} `json:"nodes"`
	}
	var odd *json.UnmarshalTypeError
	switch err := json.Unmarshal(text, &report); {
	case errors.As(err, &odd):
		return nil, fmt.Errorf("it is not a report: %s has the type %s", cmp.Or(odd.Field, "the document"), odd.Value)
	case err != nil && !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")):
		return nil, errors.New("it is not a report (JSON, written by --report FILE.json)")
	case err != nil:
		return nil, fmt.Errorf("it is not a report: %w", err)
	case report.Command == "" || report.Nodes == nil:
		return nil, errors.New("it is not a report: it does not name its command, or has no nodes")
	case report.Command != command:
		return nil, fmt.Errorf("it is the report of dsbuild %s", ui.Shorten(report.Command, 200))
	}
	p := &PastReport{notOK: map[string]bool{}}
	seen := map[string]bool{}
	for _, n := range report.Nodes {
		switch {
		case n.Name == "" || !slices.Contains(statuses(), n.Status):
			return nil, fmt.Errorf("it is not a report: the status of node %q is %q", ui.Shorten(n.Name, 200), ui.Shorten(string(n.Status), 200))
		case seen[n.Name]:
			return nil, fmt.Errorf("it is not a report: it has the node %q twice", ui.Shorten(n.Name, 200))
		}
		seen[n.Name] = true
		p.names = append(p.names, n.Name)
		if n.Status != OK {
			p.notOK[n.Name] = true
		}
	}
	return p, nil
}

// statuses returns every status that a node can have.
func statuses() []Status { return []Status{OK, Failed, Unreachable, Refused, Differs, Skipped} }

// Retry returns the nodes of selected that were not ok, in the order of selected. all are the
// nodes of the whole inventory. The remarks name the nodes that were not ok but are left out. A
// report with none of the inventory's nodes is a *diagnostic.Error.
func (p *PastReport) Retry(selected, all []inventory.Host) (again []inventory.Host, remarks []string, err error) {
	there, known := map[string]bool{}, false
	for _, h := range all {
		there[h.Name] = true
	}
	var gone, outside []string
	within := map[string]bool{}
	for _, h := range selected {
		within[h.Name] = true
		if p.notOK[h.Name] {
			again = append(again, h)
		}
	}
	for _, name := range p.names {
		known = known || there[name]
		switch {
		case !p.notOK[name]:
		case !there[name]:
			gone = append(gone, name)
		case !within[name]:
			outside = append(outside, name)
		}
	}
	if !known && len(p.names) > 0 {
		return nil, nil, wrongReport(p.file, fmt.Errorf("none of its nodes (%s) is in the inventory", ui.FoldShort(p.names)), "is it the report of another inventory?")
	}
	if len(gone) > 0 {
		remarks = append(remarks, fmt.Sprintf("%s: not ok in %s, but no longer in the inventory: left out", ui.FoldShort(gone), p.file))
	}
	if len(outside) > 0 {
		remarks = append(remarks, fmt.Sprintf("%s: not ok in %s, and left out by --limit", ui.FoldShort(outside), p.file))
	}
	return again, remarks, nil
}

// Nothing is the message that there is no node to retry, with the reason.
func (p *PastReport) Nothing() string {
	if len(p.notOK) == 0 {
		return fmt.Sprintf("nothing to retry: all nodes in %s are ok", p.file)
	}
	return fmt.Sprintf("nothing to retry: --limit or the inventory leaves out all nodes that were not ok in %s", p.file)
}
