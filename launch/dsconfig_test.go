package launch

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/inventory"
)

// twoByFour are two nodes with four processes each.
func twoByFour() []inventory.Host {
	return []inventory.Host{{Name: "a", Node: "a", Address: "a", Slots: 4, Python: "python3"}, {Name: "b", Node: "b", Address: "b", Slots: 4, Python: "python3"}}
}

// checked checks a configuration for eight processes.
func checked(text string, ops []string) error {
	_, err := New(Request{
		Kind: Torchrun, Hosts: twoByFour(), Command: []string{"t.py"}, Flags: flagsOf("ds-config=ds.json"), Ops: ops,
		ReadFile: func(string) ([]byte, error) { return []byte(text), nil },
	})
	return err
}

func TestGivenConfig(t *testing.T) {
	all := []string{"cpu_adam", "fused_adam", "utils"}
	for text, want := range map[string]string{
		`{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}`: "",
		`{"train_batch_size": 64}`:              "",
		`{"train_micro_batch_size_per_gpu": 3}`: "",
		`{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto"}`:     "",
		"{\n  \"train_batch_size\": 60,\n  \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2}": "ds.json:2:3: train_batch_size 60 does not match micro-batch 4 x accumulation 2 x 8 processes: want micro-batch x accumulation x processes\n    2 |   \"train_batch_size\": 60,\n      |   ^",
		`{"train_batch_size": 20}`:                       "train_batch_size 20 does not match 8 processes: want micro-batch x accumulation x processes",
		`{"gradient_accumulation_steps": 2}`:             "missing train_batch_size or train_micro_batch_size_per_gpu",
		`{"train_batch_size": 1.5}`:                      "invalid value 1.5 for train_batch_size: want a whole number",
		`{"train_batch_size": 8, "train_batch_size": 8}`: `duplicate key "train_batch_size"`,
		`{"train_batch_size": 8,}`:                       "ds.json:1:",
		`{"train_batch_size": 8`:                         "unexpected end of JSON",
		``:                                               "unexpected end of JSON",
		`[8]`:                                            "not a JSON object",
		`{"train_batch_size": 8} {}`:                     "more than one JSON value",
		strings.Repeat(`{"a":`, 100):                     "nested too deeply",
		`{"train_batch_size": 8, "bf16": {"enabled": true}, "fp16": {"enabled": true}}`:                                                     "bf16 and fp16 are both enabled",
		`{"train_batch_size": 8, "zero_optimization": {"stage": 4}}`:                                                                        "invalid ZeRO stage 4",
		`{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}`:                                    "offload_param to cpu requires ZeRO stage 3, but the stage is 2",
		`{"train_batch_size": 8, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}}`:                                            "requires ZeRO stage 1, but the stage is 0",
		`{"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}`:                               "offload_optimizer to nvme requires an nvme_path",
		`{"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "disk"}}}`:                               `invalid value "disk" for zero_optimization.offload_optimizer.device: want cpu, nvme or none`,
		`{"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/n"}}}`:                "NVMe offload requires the op async_io, but the wheel has cpu_adam, fused_adam, utils",
		`{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}`:                                "",
		`{"train_batch_size": 8, "optimizer": {"type": "Lion"}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}`: "requires the op cpu_lion",
		`{"train_batch_size": 8, "optimizer": {"type": "Lamb"}}`:                                                                            "the optimizer Lamb requires the op fused_lamb",
		`{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"torch_adam": true}}}`:                                           "",
	} {
		err := checked(text, all)
		var wrong *Error
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (!errors.As(err, &wrong) || !strings.Contains(err.Error(), want)):
			t.Errorf("%s:\n%v\nwant\n%s", text, err, want)
		}
	}
	// A wheel without operators is not one that is not known.
	if err := checked(`{"train_batch_size": 8, "optimizer": {"type": "AdamW"}}`, []string{}); err == nil || !strings.Contains(err.Error(), "the wheel has none") {
		t.Error(err)
	}
	if err := checked(`{"train_batch_size": 8, "optimizer": {"type": "AdamW"}}`, nil); err != nil {
		t.Error(err)
	}
}

// What is rendered is right by DeepSpeed's rule, whichever numbers were given.
func TestRenderedBatches(t *testing.T) {
	for flags, want := range map[string][3]int{ // train, micro, accumulation
		"":                              {8, 1, 1},
		"micro-batch=4":                 {32, 4, 1},
		"micro-batch=4 accumulation=2":  {64, 4, 2},
		"train-batch=64":                {64, 8, 1},
		"train-batch=64 accumulation=2": {64, 4, 2},
		"train-batch=64 micro-batch=2":  {64, 2, 4},
		"train-batch=64 micro-batch=4 accumulation=2": {64, 4, 2},
		"train-batch=60":                              {},
		"train-batch=64 micro-batch=3":                {},
		"train-batch=4":                               {},
		"train-batch=64 micro-batch=4 accumulation=1": {},
	} {
		var words []string
		if flags != "" {
			words = strings.Split(flags, " ")
		}
		j, err := New(Request{Kind: Torchrun, Hosts: twoByFour(), Command: []string{"t.py"}, Flags: flagsOf(append([]string{"zero=2", "ds-auto=false"}, words...)...)})
		if want == [3]int{} {
			if err == nil || !strings.Contains(err.Error(), "processes: want micro-batch x accumulation x processes") {
				t.Errorf("%q: %v", flags, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", flags, err)
			continue
		}
		var c struct {
			Train int `json:"train_batch_size"`
			Micro int `json:"train_micro_batch_size_per_gpu"`
			Acc   int `json:"gradient_accumulation_steps"`
		}
		if err := json.Unmarshal([]byte(j.DS.text()), &c); err != nil || [3]int{c.Train, c.Micro, c.Acc} != want || c.Micro*c.Acc*8 != c.Train {
			t.Errorf("%q: %v %+v, want %v", flags, err, c, want)
		}
	}
}

// A hint about a batch is right: with the number that it names the job is made.
func TestBatchHints(t *testing.T) {
	t.Parallel()
	number := regexp.MustCompile(`\d+`)
	for flags, want := range map[string]string{
		"train-batch=60":                               "use 56 or 64",
		"train-batch=64 micro-batch=3":                 "use 48 or 72",
		"train-batch=64 accumulation=5":                "use 40 or 80",
		"train-batch=4":                                "use 8",
		"train-batch=64 micro-batch=4 accumulation=1":  "use 32",
		"train-batch=100 micro-batch=4 accumulation=4": "use 128",
	} {
		words := strings.Split(flags, " ")
		_, err := New(Request{Kind: Torchrun, Hosts: twoByFour(), Command: []string{"t.py"}, Flags: flagsOf(append([]string{"zero=2", "ds-auto=false"}, words...)...)})
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.Hint() != want {
			t.Errorf("%s: %v, want %s", flags, err, want)
			continue
		}
		for _, train := range number.FindAllString(want, -1) {
			words[0] = "train-batch=" + train
			if _, err := New(Request{Kind: Torchrun, Hosts: twoByFour(), Command: []string{"t.py"}, Flags: flagsOf(append([]string{"zero=2", "ds-auto=false"}, words...)...)}); err != nil {
				t.Errorf("%s: hint %s: %v", flags, train, err)
			}
		}
	}
	for text, want := range map[string]string{
		`{"train_batch_size": 100, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}`: "use 128",
		`{"train_batch_size": 100, "train_micro_batch_size_per_gpu": 4}`:                                   "use 96 or 128",
		`{"train_batch_size": 100, "gradient_accumulation_steps": 3}`:                                      "use 96 or 120",
		`{"train_batch_size": 100}`: "use 96 or 104",
	} {
		err := checked(text, nil)
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.Hint() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
			continue
		}
		for _, train := range number.FindAllString(want, -1) {
			if err := checked(strings.Replace(text, "100", train, 1), nil); err != nil {
				t.Errorf("%s: hint %s: %v", text, train, err)
			}
		}
	}
}

// A configuration that is rendered is given to the program, by the option that it
// takes; one that its arguments name already is not given twice.
func TestConfigPassed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind  Launcher
		flags string
		words string
		want  string // behind the program's name; none where nothing is passed
	}{
		{Torchrun, "zero=2 config-arg=none", "t.py", ""},
		{Torchrun, "zero=2 config-arg=--ds-file", "t.py", "t.py \\\n  --ds-file \"$ds_config\""},
		{Torchrun, "ds-config=my.json ds-auto=false", "t.py", "--deepspeed --deepspeed_config \"$ds_config\""},
		{Torchrun, "zero=2", "t.py --deepspeed ds_config.json", ""},
		{Torchrun, "zero=2", "t.py", "t.py \\\n  --deepspeed \"$ds_config\" \\\n"},
		{Torchrun, "zero=2 ds-auto=false", "t.py", "t.py \\\n  --deepspeed --deepspeed_config \"$ds_config\" \\\n"},
		{Torchrun, "", "t.py", ""},
		{Torchrun, "", "t.py --deepspeed my.json", ""},
		{Slurm, "zero=3 nodes=2", "t.py", "t.py \\\n  --deepspeed \"$ds_config\"\n"},
		{Slurm, "zero=3 nodes=2 slurm-form=workers", "t.py", ""}, // of submit.sh; its scripts below
		{AIStation, "offload=cpu", "t.py", "t.py \\\n  --deepspeed \"$ds_config\" \\\n"},
	} {
		r := Request{Kind: c.kind, Command: strings.Fields(c.words), Flags: flagsOf(strings.Fields(c.flags)...)}
		r.ReadFile = func(string) ([]byte, error) { return []byte(`{"train_micro_batch_size_per_gpu": 1}`), nil }
		j, err := New(r)
		if err != nil {
			t.Errorf("%s %s: %v", c.kind, c.flags, err)
			continue
		}
		files, err := j.Render()
		if err != nil {
			t.Fatal(err)
		}
		text := files[0].Text
		if strings.Contains(text, "$ds_config\"") != (c.want != "") || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: no %q in\n%s", c.kind, c.flags, c.want, text)
		}
		has := slices.ContainsFunc(files, func(f File) bool { return f.Name == ConfigName })
		if wants := c.want != "" && !strings.Contains(c.flags, "my.json") || strings.Contains(c.flags, "zero"); has != wants {
			t.Errorf("%s %q %q: a configuration is rendered: %t", c.kind, c.flags, c.words, has)
		}
		if strings.Contains(c.flags, "workers") {
			for _, f := range files[1:3] {
				if !strings.HasSuffix(f.Text, "--deepspeed \"$ds_config\"\n") {
					t.Errorf("%s\n%s", f.Name, f.Text)
				}
			}
		}
	}
	for flags, want := range map[string]string{
		"zero=2":                   "the program's arguments specify the configuration \"my.json\", but ds_config.json would be generated as well",
		"config-arg=--x":           "",
		"zero=2 ds-config=my.json": "zero applies only to a generated configuration",
	} {
		_, err := New(Request{Kind: Torchrun, Command: []string{"t.py", "--deepspeed", "my.json"}, Flags: flagsOf(strings.Fields(flags)...), ReadFile: os.ReadFile})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", flags, err)
		}
	}
	if _, err := New(Request{Kind: Torchrun, Command: []string{"t.py"}, Flags: flagsOf("config-arg=--x")}); err == nil || !strings.Contains(err.Error(), "requires a DeepSpeed configuration") {
		t.Error(err)
	}
}

// The program finds the configuration wherever the script is called from.
func TestConfigFound(t *testing.T) {
	t.Parallel()
	for _, sample := range []string{"torchrun-zero", "slurm-zero"} {
		_, files := sampleNamed(t, sample)
		s := newStage(t, files)
		out, log, code := s.run(t, files[0].Name, "A=b")
		for _, one := range heard(t, out) {
			if n := len(one.Argv); code != 0 || one.Argv[n-2] != "--deepspeed" || one.Argv[n-1] != filepath.Join(s.dir, ConfigName) {
				t.Errorf("%s: %d %q\n%s", sample, code, one.Argv, log)
			}
		}
	}
}

// With "auto" numbers that are said stay, and the Trainer fills in the others.
func TestAutoKeepsWhatIsSaid(t *testing.T) {
	t.Parallel()
	j, err := New(Request{Kind: Slurm, Command: []string{"t.py"}, Flags: flagsOf("nodes=2", "zero=2", "micro-batch=4", "precision=fp16")})
	if err != nil {
		t.Fatal(err)
	}
	text := j.DS.text()
	for _, want := range []string{`"train_micro_batch_size_per_gpu": 4,`, `"train_batch_size": "auto",`, "\"fp16\": {\n    \"enabled\": true"} {
		if !strings.Contains(text, want) || strings.Contains(text, "bf16") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	for flags, want := range map[string]string{
		"zero=2 nodes=1:2 train-batch=64":                            "which is unknown until the job runs",
		"zero=2 nodes=2 train-batch=64 micro-batch=3 accumulation=1": "48",
	} {
		_, err := New(Request{Kind: Slurm, Command: []string{"t.py"}, Flags: flagsOf(strings.Fields(flags)...)})
		var wrong *Error
		if !errors.As(err, &wrong) || !strings.Contains(err.Error()+wrong.Hint(), want) {
			t.Errorf("%s: %v", flags, err)
		}
	}
}

func TestConfigMistakes(t *testing.T) {
	for _, c := range []struct {
		flags []string
		hosts []inventory.Host
		ops   []string
		want  string
	}{
		{[]string{"offload=nvme"}, twoByFour(), nil, "NVMe offload requires ZeRO-3"},
		{[]string{"offload=nvme", "zero=3"}, twoByFour(), nil, "NVMe offload requires a directory"},
		{[]string{"offload=cpu", "zero=0"}, twoByFour(), nil, "offloading requires ZeRO"},
		{[]string{"offload=cpu"}, twoByFour(), []string{"utils"}, "CPU offload of the optimizer requires the op cpu_adam, but the wheel has utils"},
		{[]string{"zero=2"}, twoByFour(), []string{"cpu_adam"}, "the optimizer AdamW requires the op fused_adam"},
		{[]string{"ds-config=x", "zero=3"}, twoByFour(), nil, "zero applies only to a generated configuration"},
	} {
		_, err := New(Request{
			Kind: Torchrun, Hosts: c.hosts, Command: []string{"t.py"}, Flags: flagsOf(c.flags...), Ops: c.ops,
			ReadFile: func(string) ([]byte, error) { return []byte(`{"train_batch_size": 8}`), nil },
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.flags, err, c.want)
		}
	}
}

// Whatever a configuration holds, it is read or refused with its place.
func FuzzConfig(f *testing.F) {
	for _, seed := range []string{`{"train_batch_size": 8}`, `{"a": {"b": [1, {"c": null}]}, "zero_optimization": {"stage": "x"}}`, `{"a":1,"a":2}`, "[", `{"\ud800": 1}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := checked(text, []string{"utils"})
		var wrong *Error
		if err != nil && (!errors.As(err, &wrong) || wrong.Problems[0].Position.File == "") {
			t.Errorf("%#v", err)
		}
	})
}
