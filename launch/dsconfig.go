package launch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// DSConfig holds the settings of a DeepSpeed configuration.
type DSConfig struct {
	File       string // the user's configuration; optional
	Stage      int
	Offload    string
	NVMePath   string
	Precision  string
	TrainBatch int
	MicroBatch int
	// Accumulation is gradient_accumulation_steps.
	Accumulation int
	// Auto leaves values to the Hugging Face Trainer.
	Auto bool
	// Arg is the program's option for the file. Empty means the default, and none means
	// that the file is not passed.
	Arg string
	// Rendered is set if the configuration is generated, and Named if the program's
	// arguments contain one.
	Rendered, Named bool
}

// configKeys are the settings of a rendered configuration.
func configKeys() []string {
	return []string{"zero", "offload", "nvme-path", "precision", "train-batch", "micro-batch", "accumulation", "ds-auto"}
}

// takesConfig are the kinds whose jobs may have a DeepSpeed configuration.
func takesConfig() []Launcher { return []Launcher{Slurm, Torchrun, AIStation} }

// TakesConfig reports whether jobs of a kind support a DeepSpeed configuration.
func TakesConfig(kind Launcher) bool { return slices.Contains(takesConfig(), kind) }

// prepareConfig completes the settings of DeepSpeed's configuration, or reads the
// user's own, and checks it.
func (b *builder) prepareConfig(r Request) {
	ds := &b.job.DS
	said := slices.ContainsFunc(configKeys(), b.isSet)
	if !b.isSet("ds-auto") {
		ds.Auto = true // most programs for torchrun use the Trainer
	}
	// Find a configuration in the program's arguments. If there are settings of a configuration, it must be the
	// rendered file.
	name, own := b.findArgument("--deepspeed_config", "--deepspeed-config", "--ds_config", "--ds-config", "--deepspeed")
	ds.Named = own && name != ""
	if ds.Named && path.Base(name) != ConfigName && said && ds.File == "" {
		b.addProblem(b.said["args"],
			"use --config "+remote.Word(name)+" to check that configuration, or omit the argument",
			"the program's arguments specify the configuration %q, but %s would be generated as well", name, ConfigName)
	}
	switch {
	case ds.File != "":
		b.givenConfig(r)
		return
	case !said:
		if b.isSet("config-arg") && !ds.Named {
			b.addProblem(b.said["config-arg"], "add --zero 2, or --config FILE",
				"%s requires a DeepSpeed configuration", b.said["config-arg"].name())
		}
		return
	}
	ds.Rendered = true
	b.completeConfig()
	if len(b.Problems) > 0 {
		return
	}
	// A rendered configuration passes the same checks as the user's own.
	c, err := readConfig([]byte(ds.text()))
	if err != nil {
		b.Add(Position{File: ConfigName}, "", "%v", err)
		return
	}
	configCheck{b, c, func(string) Position { return b.placeOf("offload") }, r.Ops}.checkAll()
}

// isPassed reports whether the rendering passes the configuration to the program.
func (ds DSConfig) isPassed() bool { return ds.isSet() && !ds.Named && ds.Arg != "none" }

// isSet reports whether the job has a DeepSpeed configuration, generated or the user's.
func (ds DSConfig) isSet() bool { return ds.File != "" || ds.Rendered }

// Flags returns the program's options for the configuration file, as in the Hugging Face
// Trainer or deepspeed.add_config_arguments.
func (ds DSConfig) Flags() string {
	switch {
	case ds.Arg != "":
		return ds.Arg
	case ds.Auto:
		return "--deepspeed"
	}
	return "--deepspeed --deepspeed_config"
}

// shellArgs returns the shell words of the program's configuration, on separate lines.
func (ds DSConfig) shellArgs(indent int) string {
	if !ds.isPassed() {
		return ""
	}
	return " \\\n" + strings.Repeat(" ", indent) + ds.Flags() + ` "$ds_config"`
}

// configFile returns the rendered configuration, if any.
func (j *Job) configFile() []File {
	if !j.DS.Rendered {
		return nil
	}
	return []File{{ConfigName, 0o644, j.DS.text()}}
}

// ConfigName is the file name of a generated DeepSpeed configuration.
const ConfigName = "ds_config.json"

func (b *builder) placeOf(key string) Position {
	if s, ok := b.said[key]; ok {
		if len(s.Words) > 0 {
			return s.Words[0].At
		}
		return s.At
	}
	return Position{File: "deepspeed"}
}

// completeConfig sets the defaults of the configuration to render.
func (b *builder) completeConfig() {
	ds := &b.job.DS
	if !b.isSet("zero") {
		ds.Stage = 2
	}
	ds.Offload = cmp.Or(ds.Offload, "none")
	if ds.Precision == "" && !ds.Auto {
		ds.Precision = "bf16"
	}
	if ds.Offload == "nvme" && ds.Stage != 3 {
		b.Add(b.placeOf("offload"), "add --zero 3", "NVMe offload requires ZeRO-3, but the stage is %d", ds.Stage)
	}
	if ds.Offload == "nvme" && ds.NVMePath == "" && !b.refused["nvme-path"] {
		b.Add(b.placeOf("offload"), "add --nvme-path /local/nvme", "NVMe offload requires a directory on a local disk")
	}
	if ds.Offload != "none" && ds.Stage == 0 {
		b.Add(b.placeOf("offload"), "add --zero 2", "offloading requires ZeRO stage 1 or higher")
	}
	b.completeBatch()
}

// configWorld returns the number of processes for the configuration. It returns 0 if the number
// is known only at run time: for an elastic job, or a script that gets its nodes when it starts.
func (j *Job) configWorld() int {
	if j.Nodes.Elastic() || j.Kind == AIStation || j.Kind == Torchrun && len(j.Hosts) == 0 && j.Nodes.Max == 1 {
		return 0
	}
	return j.WorldSize()
}

// batch is DeepSpeed's rule for its three numbers: train = micro x acc x world. Zero means
// that a number is not set.
type batch struct{ train, micro, acc, world int }

// withDerived fills in the missing numbers as DeepSpeed does.
func (b batch) withDerived() batch {
	switch {
	case b.train == 0:
		b.micro, b.acc = max(b.micro, 1), max(b.acc, 1)
		b.train = b.micro * b.acc * b.world
	case b.micro == 0 && b.acc == 0:
		b.micro, b.acc = b.train/b.world, 1
	case b.micro == 0:
		b.micro = b.train / (b.acc * b.world)
	case b.acc == 0:
		b.acc = b.train / (b.micro * b.world)
	}
	return b
}

// isConsistent reports whether the numbers agree.
func (b batch) isConsistent() bool {
	c := b.withDerived()
	return c.micro > 0 && c.acc > 0 && c.micro*c.acc*c.world == c.train
}

// factors describes the numbers that the train batch must match.
func (b batch) factors() string {
	var known []string
	if b.micro > 0 {
		known = append(known, fmt.Sprintf("micro-batch %d", b.micro))
	}
	if b.acc > 0 {
		known = append(known, fmt.Sprintf("accumulation %d", b.acc))
	}
	known = append(known, ui.Count(b.world, "process"))
	return strings.Join(known, " x ") + ": want micro-batch x accumulation x processes"
}

// nearestFits suggests the nearest train batches that match the other numbers.
func (b batch) nearestFits() string {
	step := max(b.micro, 1) * max(b.acc, 1) * b.world
	low := b.train / step * step
	if b.micro > 0 && b.acc > 0 {
		low = 0 // all numbers are given: only one fits
	}
	var fit []string
	for _, train := range []int{low, low + step} {
		if try := (batch{train, b.micro, b.acc, b.world}); train > 0 && try.isConsistent() {
			fit = append(fit, strconv.Itoa(train))
		}
	}
	return "use " + strings.Join(fit, " or ")
}

// completeBatch completes the three numbers of the batch rule and checks them. The
// Hugging Face Trainer completes them itself.
func (b *builder) completeBatch() {
	ds := &b.job.DS
	rule := batch{ds.TrainBatch, ds.MicroBatch, ds.Accumulation, b.job.configWorld()}
	if rule.world == 0 {
		if rule.train > 0 {
			b.Add(b.placeOf("train-batch"), "use --micro-batch and --accumulation, which DeepSpeed multiplies by the number of processes",
				"the train batch depends on the number of processes, which is unknown until the job runs")
		}
		if !ds.Auto {
			ds.MicroBatch, ds.Accumulation = max(ds.MicroBatch, 1), max(ds.Accumulation, 1)
		}
		return
	}
	if rule.train > 0 && !rule.isConsistent() {
		s := b.said["train-batch"]
		b.addProblem(s, rule.nearestFits(), "%s %d does not match %s", s.name(), rule.train, rule.factors())
		return
	}
	if ds.Auto {
		return
	}
	rule = rule.withDerived()
	ds.TrainBatch, ds.MicroBatch, ds.Accumulation = rule.train, rule.micro, rule.acc
}

// renderedConfig is a rendered configuration. The order of the keys is for human readers. A value of type any may be "auto".
type renderedConfig struct {
	TrainBatch   any      `json:"train_batch_size,omitempty"`
	MicroBatch   any      `json:"train_micro_batch_size_per_gpu,omitempty"`
	Accumulation any      `json:"gradient_accumulation_steps,omitempty"`
	Clipping     any      `json:"gradient_clipping"`
	BF16         *enabled `json:"bf16,omitempty"`
	FP16         *enabled `json:"fp16,omitempty"`
	Optimizer    struct {
		Type   string `json:"type"`
		Params struct {
			LR          any `json:"lr"`
			Betas       any `json:"betas"`
			Eps         any `json:"eps"`
			WeightDecay any `json:"weight_decay"`
		} `json:"params"`
	} `json:"optimizer"`
	Zero struct {
		Stage        int      `json:"stage"`
		Overlap      bool     `json:"overlap_comm,omitempty"`
		Contiguous   bool     `json:"contiguous_gradients,omitempty"`
		GatherOnSave bool     `json:"stage3_gather_16bit_weights_on_model_save,omitempty"`
		Optimizer    *offload `json:"offload_optimizer,omitempty"`
		Param        *offload `json:"offload_param,omitempty"`
	} `json:"zero_optimization"`
}

type enabled struct {
	Enabled any `json:"enabled"`
}

type offload struct {
	Device    string `json:"device"`
	PinMemory bool   `json:"pin_memory"`
	NVMePath  string `json:"nvme_path,omitempty"`
}

// text writes the configuration as JSON.
func (ds DSConfig) text() string {
	orAuto := func(v any) any {
		if ds.Auto {
			return "auto"
		}
		return v
	}
	number := func(n int) any {
		if n > 0 {
			return n
		}
		return orAuto(nil)
	}
	var c renderedConfig
	c.TrainBatch, c.MicroBatch, c.Accumulation = number(ds.TrainBatch), number(ds.MicroBatch), number(ds.Accumulation)
	c.Clipping = orAuto(1.0)
	switch ds.Precision {
	case "bf16":
		c.BF16 = &enabled{true}
	case "fp16":
		c.FP16 = &enabled{true}
	case "":
		c.BF16, c.FP16 = &enabled{"auto"}, &enabled{"auto"}
	}
	c.Optimizer.Type = "AdamW"
	adam := &c.Optimizer.Params
	adam.LR, adam.Betas, adam.Eps, adam.WeightDecay = orAuto(5e-5), orAuto([]float64{0.9, 0.999}), orAuto(1e-8), orAuto(0.0)
	c.Zero.Stage, c.Zero.GatherOnSave = ds.Stage, ds.Stage == 3
	c.Zero.Overlap, c.Zero.Contiguous = ds.Stage >= 2, ds.Stage >= 2
	if ds.Offload != "none" {
		c.Zero.Optimizer = &offload{Device: ds.Offload, PinMemory: true}
		if ds.Offload == "nvme" {
			c.Zero.Optimizer.NVMePath = ds.NVMePath
		}
		if ds.Stage == 3 {
			c.Zero.Param = c.Zero.Optimizer
		}
	}
	text, _ := json.MarshalIndent(c, "", "  ") //nolint:errcheck // plain values always marshal
	return string(text) + "\n"
}

// jsonText writes a plain value as JSON.
func jsonText(v any) string {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "null"
	}
	return strings.TrimSuffix(out.String(), "\n")
}
