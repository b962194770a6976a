package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// manifests are the documents of a YAML file.
func manifests(t *testing.T, text string) []any {
	t.Helper()
	dec := yaml.NewDecoder(strings.NewReader(text))
	var all []any
	for {
		var doc any
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, doc)
	}
}

// at goes into a document by keys and indices.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok || m[step] == nil {
				t.Fatalf("no %v in %v", step, v)
			}
			v = m[step]
		case int:
			l, ok := v.([]any)
			if !ok || len(l) <= step {
				t.Fatalf("no %v in %v", step, v)
			}
			v = l[step]
		}
	}
	return v
}

// release is a release of an operator, whose Go module has the operator's own schemas, with the module's sum as in go.sum.
type release struct{ version, sum string }

// operator is the operator of a kind: its module, and the file with the schema.
type operator struct {
	module, file string
	releases     []release // the newest first
}

func operators() map[string]operator {
	training := []release{
		{"v1.9.3", "h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc="},
		{"v1.8.1", "h1:mVvoBSCInbMBX0gGSn4+Ihj3ycwoLO1iEAw+0qPhQfc="},
	}
	trainer := []release{
		{"v2.3.0", "h1:Je+e7zvTLzB4qW09J1fB7pZrqvPtWuGng2NqdN5p5QU="},
		{"v2.2.0", "h1:whChZckEtycLo1UKH/M0hiNaCUozbLvf9JrgmMv+TAg="},
		{"v2.1.0", "h1:jRABD9ZYToamNH2atHze3L/VC/v6KCAqUEqsOQOjVTg="},
		{"v2.0.0", "h1:mnQSR9iPKItxyUR8mq66XsmxqKNVHwr9YYOB7BTU9dU="},
	}
	return map[string]operator{
		"kubeflow.org/v1 PyTorchJob":                    {"github.com/kubeflow/training-operator", "kubeflow.org_pytorchjobs.yaml", training},
		"trainer.kubeflow.org/v1alpha1 TrainJob":        {"github.com/kubeflow/trainer/v2", "trainer.kubeflow.org_trainjobs.yaml", trainer},
		"trainer.kubeflow.org/v1alpha1 TrainingRuntime": {"github.com/kubeflow/trainer/v2", "trainer.kubeflow.org_trainingruntimes.yaml", trainer},
	}
}

// schema is the schema that a release of the operator has for its kind.
func (o operator) schema(t *testing.T, r release) any {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", o.module+"@"+r.version)
	cmd.Dir = t.TempDir() // no module of ours takes part
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		lack(t, "%s %s cannot be had: %v\n%s", o.module, r.version, err, out)
	}
	var got struct{ Dir, Sum string }
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if got.Sum != r.sum {
		t.Fatalf("%s %s is %s, and was %s", o.module, r.version, got.Sum, r.sum)
	}
	text, err := os.ReadFile(filepath.Join(got.Dir, "manifests", "base", "crds", o.file))
	if err != nil {
		t.Fatal(err)
	}
	return at(t, manifests(t, string(text))[0], "spec", "versions", 0, "schema", "openAPIV3Schema")
}

// breaches are what an object has that its schema does not allow. Unlike an API
// server, which drops them, it counts unknown fields.
func breaches(schema any, v any, path string) []string {
	s, ok := schema.(map[string]any)
	if !ok || s["x-kubernetes-preserve-unknown-fields"] == true && s["properties"] == nil {
		return nil
	}
	if s["x-kubernetes-int-or-string"] == true {
		if isType("integer", v) || isType("string", v) {
			return nil
		}
		return []string{fmt.Sprintf("%s: %v is neither a number nor a text", path, v)}
	}
	want, _ := s["type"].(string)
	if want != "" && !isType(want, v) {
		return []string{fmt.Sprintf("%s: %v (%T) is no %s", path, v, v, want)}
	}
	var all []string
	switch v := v.(type) {
	case map[string]any:
		all = append(all, fieldBreaches(s, v, path)...)
	case []any:
		for i, item := range v {
			all = append(all, breaches(s["items"], item, fmt.Sprintf("%s[%d]", path, i))...)
		}
	}
	return all
}

func fieldBreaches(s, v map[string]any, path string) []string {
	var all []string
	required, _ := s["required"].([]any)
	for _, name := range required {
		if _, has := v[name.(string)]; !has {
			all = append(all, fmt.Sprintf("%s.%s is missing", path, name))
		}
	}
	properties, typed := s["properties"].(map[string]any)
	for name, value := range v {
		inner, known := properties[name]
		if !known {
			inner = s["additionalProperties"]
		}
		if inner == nil && (typed || s["type"] == "object") && !strings.HasSuffix(path, ".metadata") {
			all = append(all, fmt.Sprintf("%s.%s is unknown", path, name))
		}
		all = append(all, breaches(inner, value, path+"."+name)...)
	}
	return all
}

func isType(want string, v any) bool {
	switch v.(type) {
	case string:
		return want == "string"
	case bool:
		return want == "boolean"
	case uint64, int64, int:
		return want == "integer" || want == "number"
	case float64:
		return want == "number"
	case []any:
		return want == "array"
	case map[string]any:
		return want == "object"
	}
	return false
}

// What is rendered for Kubernetes is what the operators' own schemas allow, in their newest releases; TestFullLaunchSchemas
// asks the older ones.
func TestSchemas(t *testing.T) { checkManifests(t, func(all []release) []release { return all[:1] }) }

// checkManifests compares the manifests of all samples with the schemas of some releases of their operators.
func checkManifests(t *testing.T, chosen func([]release) []release) {
	t.Helper()
	seen := map[string]int{}
	schemas := map[string]any{}
	for _, s := range samples() {
		if s.kind != K8s {
			continue
		}
		_, files := sampleNamed(t, s.name)
		for _, doc := range manifests(t, files[0].Text) {
			kind := fmt.Sprint(at(t, doc, "apiVersion"), " ", at(t, doc, "kind"))
			o, ok := operators()[kind]
			if !ok {
				t.Fatalf("%s: no operator for %q", s.name, kind)
			}
			seen[kind]++
			for _, r := range chosen(o.releases) {
				name := kind + " of " + r.version
				if schemas[name] == nil {
					schemas[name] = o.schema(t, r)
				}
				for _, b := range breaches(schemas[name], doc, name) {
					t.Errorf("%s: %s", s.name, b)
				}
			}
		}
	}
	if len(seen) != len(operators()) || seen["kubeflow.org/v1 PyTorchJob"] < 3 {
		t.Errorf("manifests of each kind: %v", seen)
	}
}

// The check finds what it is for.
func TestSchemasRefuse(t *testing.T) {
	const kind = "kubeflow.org/v1 PyTorchJob"
	o := operators()[kind]
	schema := o.schema(t, o.releases[0])
	for text, want := range map[string]string{
		"spec: {}": ".spec.pytorchReplicaSpecs is missing",
		"spec: {nprocPerNode: 8, pytorchReplicaSpecs: {}}":                                                                 ".spec.nprocPerNode: 8 (uint64) is no string",
		"spec: {replicas: 8, pytorchReplicaSpecs: {}}":                                                                     ".spec.replicas is unknown",
		"spec: {pytorchReplicaSpecs: {Master: {template: {spec: {containers: [{image: a}]}}}}}":                            ".containers[0].name is missing",
		"spec: {pytorchReplicaSpecs: {Master: {template: {spec: {volumes: [{name: a, emptyDirs: {}}], containers: []}}}}}": ".emptyDirs is unknown",
	} {
		got := strings.Join(breaches(schema, manifests(t, text)[0], ""), "\n")
		if !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	// What a release has removed is refused by it alone.
	trainer := operators()["trainer.kubeflow.org/v1alpha1 TrainingRuntime"]
	old := manifests(t, "spec: {mlPolicy: {numNodes: 2, torch: {numProcPerNode: 8}}}")[0]
	for _, r := range trainer.releases {
		got := strings.Join(breaches(trainer.schema(t, r), old, ""), "\n")
		if want := r.version >= "v2.2.0"; strings.Contains(got, ".numProcPerNode is unknown") != want {
			t.Errorf("%s refuses numProcPerNode: %q, want %v", r.version, got, want)
		}
	}
}
