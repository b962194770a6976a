package lint

import (
	"net/url"
	"path/filepath"
)

// SARIF is a document of the Static Analysis Results Interchange Format, 2.1.0, with
// the fields that CI systems read.
type SARIF struct {
	Schema  string     `json:"$schema"`
	Version string     `json:"version"`
	Runs    []sarifRun `json:"runs"`
}

type sarifRun struct {
	Tool       sarifTool     `json:"tool"`
	ColumnKind string        `json:"columnKind"`
	Results    []sarifResult `json:"results"`
}

type sarifTool struct {
	Driver sarifDriver `json:"driver"`
}

type sarifDriver struct {
	Name    string      `json:"name"`
	Version string      `json:"version,omitempty"`
	Rules   []sarifRule `json:"rules"`
}

type sarifText struct {
	Text string `json:"text"`
}

type sarifRule struct {
	ID                   string       `json:"id"`
	ShortDescription     sarifText    `json:"shortDescription"`
	FullDescription      sarifText    `json:"fullDescription"`
	Help                 sarifText    `json:"help"`
	DefaultConfiguration sarifSetting `json:"defaultConfiguration"`
}

type sarifSetting struct {
	Level Severity `json:"level"`
}

type sarifResult struct {
	RuleID    string          `json:"ruleId"`
	RuleIndex int             `json:"ruleIndex"`
	Level     Severity        `json:"level"`
	Message   sarifText       `json:"message"`
	Locations []sarifLocation `json:"locations"`
}

type sarifLocation struct {
	PhysicalLocation sarifPlace `json:"physicalLocation"`
}

type sarifPlace struct {
	ArtifactLocation sarifFile   `json:"artifactLocation"`
	Region           sarifRegion `json:"region"`
}

type sarifFile struct {
	URI string `json:"uri"`
}

type sarifRegion struct {
	StartLine   int `json:"startLine"`
	StartColumn int `json:"startColumn"`
}

// NewSARIF makes a document of findings. Version is that of the program.
func NewSARIF(version string, all []Finding) SARIF {
	run := sarifRun{
		Tool:       sarifTool{sarifDriver{Name: "dsbuild launch lint", Version: version}},
		ColumnKind: "unicodeCodePoints",
		Results:    []sarifResult{},
	}
	index := map[string]int{}
	for i, r := range Rules() {
		index[r.ID] = i
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{
			ID: r.ID, ShortDescription: sarifText{r.Title}, FullDescription: sarifText{r.Why}, Help: sarifText{r.Fix},
			DefaultConfiguration: sarifSetting{r.Severity},
		})
	}
	for _, f := range all {
		run.Results = append(run.Results, sarifResult{
			RuleID: f.Rule, RuleIndex: index[f.Rule], Level: f.Severity,
			Message: sarifText{f.Message + ". Fix: " + f.Fix},
			Locations: []sarifLocation{{sarifPlace{
				ArtifactLocation: sarifFile{uri(f.Position.File)},
				Region:           sarifRegion{f.Position.Line, f.Position.Column},
			}}},
		})
	}
	return SARIF{
		Schema:  "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
		Version: "2.1.0",
		Runs:    []sarifRun{run},
	}
}

// uri writes a file's name as a URI: relative to the working folder, as CI systems
// expect it, or file:///.
func uri(file string) string {
	u := url.URL{Path: filepath.ToSlash(filepath.Clean(file))}
	if filepath.IsAbs(file) {
		u.Scheme = "file"
	}
	return u.String()
}
