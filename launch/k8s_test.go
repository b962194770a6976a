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

// operators are where the operators' own schemas are: in their Go modules.
func operators() map[string]struct{ module, sum, file string } {
	const v1 = "github.com/kubeflow/training-operator@v1.8.1"
	const v2 = "github.com/kubeflow/trainer/v2@v2.0.0"
	const sum1, sum2 = "h1:mVvoBSCInbMBX0gGSn4+Ihj3ycwoLO1iEAw+0qPhQfc=", "h1:mnQSR9iPKItxyUR8mq66XsmxqKNVHwr9YYOB7BTU9dU="
	return map[string]struct{ module, sum, file string }{
		"kubeflow.org/v1 PyTorchJob":                    {v1, sum1, "kubeflow.org_pytorchjobs.yaml"},
		"trainer.kubeflow.org/v1alpha1 TrainJob":        {v2, sum2, "trainer.kubeflow.org_trainjobs.yaml"},
		"trainer.kubeflow.org/v1alpha1 TrainingRuntime": {v2, sum2, "trainer.kubeflow.org_trainingruntimes.yaml"},
	}
}

// schemaOf is the schema that the operator's own definition has for a kind.
func schemaOf(t *testing.T, kind string) any {
	t.Helper()
	o, ok := operators()[kind]
	if !ok {
		t.Fatalf("no operator for %q", kind)
	}
	cmd := exec.Command("go", "mod", "download", "-json", o.module)
	cmd.Dir = t.TempDir() // no module of ours takes part
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		lack(t, "%s cannot be had: %v\n%s", o.module, err, out)
	}
	var got struct{ Dir, Sum string }
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if got.Sum != o.sum {
		t.Fatalf("%s is %s, and was %s", o.module, got.Sum, o.sum)
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
		if inner == nil && typed {
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

// What is rendered for Kubernetes is what the operators' own schemas allow.
func TestSchemas(t *testing.T) {
	schemas := map[string]any{}
	seen := 0
	for _, s := range samples() {
		if s.kind != K8s {
			continue
		}
		_, files := sampleNamed(t, s.name)
		for _, doc := range manifests(t, files[0].Text) {
			kind := fmt.Sprint(at(t, doc, "apiVersion"), " ", at(t, doc, "kind"))
			if schemas[kind] == nil {
				schemas[kind] = schemaOf(t, kind)
			}
			seen++
			for _, b := range breaches(schemas[kind], doc, kind) {
				t.Errorf("%s: %s", s.name, b)
			}
		}
	}
	if seen < 6 || len(schemas) != len(operators()) {
		t.Errorf("%d manifests of %d kinds", seen, len(schemas))
	}
}

// The check finds what it is for.
func TestSchemasRefuse(t *testing.T) {
	const kind = "kubeflow.org/v1 PyTorchJob"
	schema := schemaOf(t, kind)
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
}
