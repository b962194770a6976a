package launch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
)

// DSConfig is what is said about a DeepSpeed configuration.
type DSConfig struct {
	File       string // check this one; "" to render one
	Stage      int
	Offload    string
	NVMePath   string
	Precision  string
	TrainBatch int
	MicroBatch int
	// Accumulation is gradient_accumulation_steps.
	Accumulation int
	// Auto leaves to the Trainer of Hugging Face what it knows itself.
	Auto bool
	// Arg is the program's option for the file: "" for the usual, none where the
	// program is not to be given it.
	Arg string
	// Rendered: a configuration is rendered. Named: the program's own arguments
	// name one.
	Rendered, Named bool
}

// configKeys are those that say what a configuration is to hold.
func configKeys() []string {
	return []string{"zero", "offload", "nvme-path", "precision", "train-batch", "micro-batch", "accumulation", "ds-auto"}
}

// takesConfig are the kinds whose jobs may have a DeepSpeed configuration.
func takesConfig() []Kind { return []Kind{DeepSpeed, Slurm, Torchrun, AIStation} }

// TakesConfig reports whether jobs of a kind may have a DeepSpeed configuration.
func TakesConfig(kind Kind) bool { return slices.Contains(takesConfig(), kind) }

// deepspeed checks what is said of DeepSpeed's launcher.
func (b *builder) deepspeed() {
	b.filters()
	b.checkRemote()
	if b.job.Nodes.Max > 1 && len(b.job.Hosts) == 0 {
		b.wrong(b.said["nodes"], "add -i INVENTORY", "DeepSpeed's launcher reaches the nodes itself: a hostfile of %d nodes needs their names", b.job.Nodes.Max)
	}
}

// configuration completes what is said about DeepSpeed's configuration, or reads the one
// that is given, and checks it.
func (b *builder) configuration(r Request) {
	ds := &b.job.DS
	said := slices.ContainsFunc(configKeys(), b.has)
	if !b.has("ds-auto") && b.job.Kind != DeepSpeed {
		ds.Auto = true // torchrun's programs are mostly those of the Trainer
	}
	other := b.namedConfig(said)
	switch {
	case ds.File != "":
		b.givenConfig(r)
		return
	case !said && (b.job.Kind != DeepSpeed || other):
		if b.has("config-arg") && !ds.Named {
			b.wrong(b.said["config-arg"], "add --zero 2, or --config FILE", "config-arg is for a DeepSpeed configuration, and there is none")
		}
		return
	}
	ds.Rendered = true
	b.completeConfig()
	if len(b.Problems) > 0 {
		return
	}
	// What is rendered is held to the same rules as what is given.
	c, err := readConfig([]byte(b.job.configText()))
	if err != nil {
		b.wrongAt(Position{File: ConfigName}, "", "%v", err)
		return
	}
	b.checkConfig(c, func(string) Position { return b.placeOf("offload") }, r.Ops)
}

// namedConfig finds out whether the program's own arguments name a configuration;
// other is true for one that is not the rendered one.
func (b *builder) namedConfig(said bool) (other bool) {
	name, own := b.argument("--deepspeed_config", "--deepspeed-config", "--ds_config", "--ds-config", "--deepspeed")
	ds := &b.job.DS
	ds.Named = own && name != ""
	other = ds.Named && path.Base(name) != ConfigName
	if other && said && ds.File == "" {
		b.wrong(b.said["args"], "add --config "+word(name)+" to check that one, or leave the argument out", "the program is given the configuration %q, and %s is rendered too", name, ConfigName)
	}
	return other
}

// PassesConfig reports whether the rendering gives the program its configuration.
func (j *Job) PassesConfig() bool { return j.Config() && !j.DS.Named && j.DS.Arg != "none" }

// Config reports whether the job has a DeepSpeed configuration: one that is
// rendered or one that is given.
func (j *Job) Config() bool { return j.DS.File != "" || j.DS.Rendered }

// ConfigFlags are the words before the configuration's name in the program's
// arguments: those of the Trainer of Hugging Face, or those that
// deepspeed.add_config_arguments gives a program.
func (j *Job) ConfigFlags() string {
	switch {
	case j.DS.Arg != "":
		return j.DS.Arg
	case j.DS.Auto:
		return "--deepspeed"
	}
	return "--deepspeed --deepspeed_config"
}

// ConfigArgs are the words of a shell that give the program its configuration,
// from a line of their own on.
func (j *Job) ConfigArgs(indent int) string {
	if !j.PassesConfig() {
		return ""
	}
	return " \\\n" + strings.Repeat(" ", indent) + j.ConfigFlags() + ` "$ds_config"`
}

// ConfigName is the file of a rendered DeepSpeed configuration.
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

// completeConfig fills in what was not said of the configuration to be rendered.
func (b *builder) completeConfig() {
	ds := &b.job.DS
	if !b.has("zero") {
		ds.Stage = 2
	}
	if ds.Offload == "" {
		ds.Offload = "none"
	}
	if ds.Precision == "" && !ds.Auto {
		ds.Precision = "bf16"
	}
	if ds.Offload == "nvme" && ds.Stage != 3 {
		b.wrongAt(b.placeOf("offload"), "add --zero 3", "NVMe offload is part of ZeRO-3, not of stage %d", ds.Stage)
	}
	if ds.Offload == "nvme" && ds.NVMePath == "" {
		b.wrongAt(b.placeOf("offload"), "add --nvme-path /local/nvme", "NVMe offload needs a folder on a local disk")
	}
	if ds.Offload != "none" && ds.Stage == 0 {
		b.wrongAt(b.placeOf("offload"), "add --zero 2", "without ZeRO there is nothing to offload")
	}
	b.batches()
}

// configWorld is the number of processes that a configuration is for; 0 where it
// is not known here: an elastic job, a script that is told its nodes when it is run.
func (j *Job) configWorld() int {
	switch {
	case j.Kind == DeepSpeed:
		return j.ActiveSlots()
	case j.Nodes.Elastic(), j.Kind == AIStation, j.Kind == Torchrun && len(j.Hosts) == 0 && j.Nodes.Max == 1:
		return 0
	}
	return j.WorldSize()
}

// batch is DeepSpeed's rule about its three numbers: train = micro x acc x world.
// Those that are 0 were not given.
type batch struct{ train, micro, acc, world int }

// withDerived is the rule with the numbers that follow from the others, as DeepSpeed
// derives them.
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

// nearestFits names the batches nearest to the one that was wanted for which the rule
// holds with all else as it was given.
func (b batch) nearestFits() string {
	step := max(b.micro, 1) * max(b.acc, 1) * b.world
	low := b.train / step * step
	if b.micro > 0 && b.acc > 0 {
		low = 0 // all is given: there is one
	}
	var fit []string
	for _, train := range []int{low, low + step} {
		if try := (batch{train, b.micro, b.acc, b.world}); train > 0 && try.isConsistent() {
			fit = append(fit, strconv.Itoa(train))
		}
	}
	return strings.Join(fit, " or ") + " would do"
}

// batches completes the three numbers of the batch rule, and checks them. The
// Trainer of Hugging Face completes them itself.
func (b *builder) batches() {
	ds := &b.job.DS
	rule := batch{ds.TrainBatch, ds.MicroBatch, ds.Accumulation, b.job.configWorld()}
	if rule.world == 0 {
		if rule.train > 0 {
			b.wrongAt(b.placeOf("train-batch"), "say --micro-batch and --accumulation: DeepSpeed multiplies them by the processes",
				"train-batch is of all processes, and how many there are is not known before the job runs")
		}
		if !ds.Auto {
			ds.MicroBatch, ds.Accumulation = max(ds.MicroBatch, 1), max(ds.Accumulation, 1)
		}
		return
	}
	if rule.train > 0 && !rule.isConsistent() && (!ds.Auto || rule.micro > 0 && rule.acc > 0) {
		b.wrongAt(b.placeOf("train-batch"), rule.nearestFits(),
			"train-batch %d is not micro-batch x accumulation x processes: no whole numbers make it of %s", rule.train, factors(rule.micro, rule.acc, rule.world))
		return
	}
	if ds.Auto {
		return
	}
	rule = rule.withDerived()
	ds.TrainBatch, ds.MicroBatch, ds.Accumulation = rule.train, rule.micro, rule.acc
}

func factors(micro, acc, world int) string {
	known := []string{}
	if micro > 0 {
		known = append(known, fmt.Sprintf("micro-batch %d", micro))
	}
	if acc > 0 {
		known = append(known, fmt.Sprintf("accumulation %d", acc))
	}
	return strings.Join(append(known, plural(world, "process")), " and ")
}

// configText is the configuration as DeepSpeed reads it. Its order is that in
// which a person would explain it.
func (j *Job) configText() string {
	ds := j.DS
	orAuto := func(v any) any {
		if ds.Auto {
			return "auto"
		}
		return v
	}
	var c object
	for _, number := range []struct {
		key   string
		value int
	}{
		{"train_batch_size", ds.TrainBatch},
		{"train_micro_batch_size_per_gpu", ds.MicroBatch},
		{"gradient_accumulation_steps", ds.Accumulation},
	} {
		switch {
		case number.value > 0:
			c = append(c, pair{number.key, number.value})
		case ds.Auto:
			c = append(c, pair{number.key, "auto"})
		}
	}
	c = append(c, pair{"gradient_clipping", orAuto(1.0)})
	for _, p := range []string{"bf16", "fp16"} {
		switch {
		case p == ds.Precision:
			c = append(c, pair{p, object{{"enabled", true}}})
		case ds.Precision == "":
			c = append(c, pair{p, object{{"enabled", "auto"}}})
		}
	}
	c = append(c,
		pair{"optimizer", object{{"type", "AdamW"}, {"params", object{
			{"lr", orAuto(5e-5)}, {"betas", orAuto([]float64{0.9, 0.999})}, {"eps", orAuto(1e-8)}, {"weight_decay", orAuto(0.0)},
		}}}},
		pair{"zero_optimization", j.zeroObject()},
	)
	var out bytes.Buffer
	c.write(&out, "")
	return out.String() + "\n"
}

// zeroObject is the part about ZeRO.
func (j *Job) zeroObject() object {
	ds := j.DS
	zero := object{{"stage", ds.Stage}}
	if ds.Stage >= 2 {
		zero = append(zero, pair{"overlap_comm", true}, pair{"contiguous_gradients", true})
	}
	if ds.Stage == 3 {
		zero = append(zero, pair{"stage3_gather_16bit_weights_on_model_save", true})
	}
	if ds.Offload == "none" {
		return zero
	}
	where := object{{"device", ds.Offload}, {"pin_memory", true}}
	if ds.Offload == "nvme" {
		where = append(where, pair{"nvme_path", ds.NVMePath})
	}
	zero = append(zero, pair{"offload_optimizer", where})
	if ds.Stage == 3 {
		zero = append(zero, pair{"offload_param", where})
	}
	return zero
}

// object is a JSON object whose order is kept.
type object []pair

type pair struct {
	key   string
	value any
}

func (o object) write(out *bytes.Buffer, indent string) {
	out.WriteString("{\n")
	for i, p := range o {
		fmt.Fprintf(out, "%s  %s: ", indent, jsonText(p.key))
		if inner, ok := p.value.(object); ok {
			inner.write(out, indent+"  ")
		} else {
			out.WriteString(jsonText(p.value))
		}
		if i < len(o)-1 {
			out.WriteByte(',')
		}
		out.WriteByte('\n')
	}
	out.WriteString(indent + "}")
}

// jsonText is a plain value in JSON; there is none that has no text.
func jsonText(v any) string {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "null"
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// config is a DeepSpeed configuration, laid flat: a value by its keys, joined by
// dots, with where it stands.
type config map[string]setTo

type setTo struct {
	value  any // string, json.Number, bool, nil, or children for an object or list
	offset int // of the key's first byte
}

// children is the value of an object or list.
type children struct{}

// readConfig reads JSON as DeepSpeed does: a key twice in one object is a fault.
func readConfig(data []byte) (config, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	c := config{}
	if err := c.value(dec, "", 0, 0); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, &configFault{int(dec.InputOffset()), "more than one JSON value"}
	}
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		return nil, &configFault{0, "not a JSON object"}
	}
	return c, nil
}

// configFault is something that JSON, or DeepSpeed's way to read it, refuses.
type configFault struct {
	offset int
	reason string
}

func (f *configFault) Error() string { return f.reason }

const maxConfigDepth = 50

func (c config) value(dec *json.Decoder, path string, offset, depth int) error {
	if depth > maxConfigDepth {
		return &configFault{offset, "nested too deeply"}
	}
	t, err := dec.Token()
	if err != nil {
		return fault(dec, err)
	}
	open, nested := t.(json.Delim)
	if !nested {
		c[path] = setTo{t, offset}
		return nil
	}
	if depth > 0 {
		c[path] = setTo{children{}, offset}
	}
	for i := 0; dec.More(); i++ {
		key, at := strconv.Itoa(i), int(dec.InputOffset())
		if open == '{' {
			t, err := dec.Token()
			if err != nil {
				return fault(dec, err)
			}
			key, _ = t.(string)
			at = int(dec.InputOffset()) - len(jsonText(key))
		}
		inner := strings.TrimPrefix(path+"."+key, ".")
		if _, twice := c[inner]; twice {
			return &configFault{at, fmt.Sprintf("%q stands there twice", inner)}
		}
		if err := c.value(dec, inner, at, depth+1); err != nil {
			return err
		}
	}
	_, err = dec.Token() // the closing one
	return fault(dec, err)
}

func fault(dec *json.Decoder, err error) error {
	if err == nil {
		return nil
	}
	at := int(dec.InputOffset())
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		at = int(syntax.Offset) - 1
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &configFault{at, "the JSON ends too early"}
	}
	return &configFault{at, err.Error()}
}

// givenConfig reads and checks the configuration that is given.
func (b *builder) givenConfig(r Request) {
	name := b.job.DS.File
	for _, key := range slices.DeleteFunc(configKeys(), func(key string) bool { return key == "ds-auto" }) {
		if b.has(key) {
			b.wrong(b.said[key], "say it in "+name+", or leave --config out", "%s is for a configuration that is rendered, and %s is given", key, name)
		}
	}
	data, err := r.ReadFile(name)
	if err != nil {
		b.wrong(b.said["ds-config"], "", "cannot read the DeepSpeed configuration: %v", err)
		return
	}
	job := b.List
	b.List.Lines, b.List.Problems = strings.Split(string(data), "\n"), nil
	place := func(offset int) Position { return placeIn(name, data, offset) }
	c, err := readConfig(data)
	var wrong *configFault
	switch {
	case errors.As(err, &wrong):
		b.wrongAt(place(wrong.offset), "", "the DeepSpeed configuration: %s", wrong.reason)
	case err == nil:
		b.checkConfig(c, func(key string) Position { return place(c[key].offset) }, r.Ops)
	}
	b.List.Lines, b.List.Problems = job.Lines, append(job.Problems, b.List.Problems...)
}

// placeIn is the line and column of a byte.
func placeIn(name string, data []byte, offset int) Position {
	before := string(data[:min(max(offset, 0), len(data))])
	line := strings.LastIndex(before, "\n") + 1
	return Position{File: name, Line: strings.Count(before, "\n") + 1, Column: len([]rune(before[line:])) + 1}
}

// checkConfig holds a configuration against the job and the wheel.
func (b *builder) checkConfig(c config, at func(key string) Position, ops []string) {
	b.checkBatch(c, at)
	b.checkZero(c, at)
	if c.on("bf16.enabled") && c.on("fp16.enabled") {
		b.wrongAt(at("fp16.enabled"), "keep bf16 on Ampere and newer", "bf16 and fp16 are both enabled")
	}
	if ops != nil {
		b.checkOps(c, at, ops)
	}
}

func (c config) on(key string) bool { return c[key].value == true }

// text of a key; "" where it is no text.
func (c config) text(key string) string {
	s, _ := c[key].value.(string)
	return s
}

// count is a number of the configuration: 0 where it is not said or "auto".
func (b *builder) count(c config, key string, at func(string) Position) (n int, auto bool) {
	v, said := c[key]
	if !said {
		return 0, false
	}
	if v.value == "auto" {
		return 0, true
	}
	n, err := strconv.Atoi(fmt.Sprint(v.value))
	if err != nil || n < 1 {
		b.wrongAt(at(key), "", "%s is %v: it must be a whole number of at least 1", key, v.value)
		return 0, true
	}
	return n, false
}

// checkBatch is DeepSpeed's own rule: of the three numbers two give the third,
// and all three must agree with the number of processes.
func (b *builder) checkBatch(c config, at func(string) Position) {
	const trainKey, microKey, accKey = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
	train, a1 := b.count(c, trainKey, at)
	micro, a2 := b.count(c, microKey, at)
	acc, a3 := b.count(c, accKey, at)
	rule := batch{train, micro, acc, b.job.configWorld()}
	if a1 || a2 || a3 || rule.world == 0 {
		return // the Trainer fills in what makes it right, or nobody knows yet
	}
	switch {
	case train == 0 && micro == 0:
		b.wrongAt(at(accKey), "give "+microKey, "neither %s nor %s is given", trainKey, microKey)
	case train > 0 && !rule.isConsistent():
		full := rule.withDerived()
		b.wrongAt(at(trainKey), rule.nearestFits(),
			"%s is %d, which is not %d (micro batch) x %d (accumulation) x %s", trainKey, train, full.micro, full.acc, plural(rule.world, "process"))
	}
}

// checkZero finds what the stages of ZeRO do not allow.
func (b *builder) checkZero(c config, at func(string) Position) {
	const zero = "zero_optimization."
	stage := 0
	if v, said := c[zero+"stage"]; said {
		n, err := strconv.Atoi(fmt.Sprint(v.value))
		if err != nil || n < 0 || n > 3 {
			b.wrongAt(at(zero+"stage"), "", "the ZeRO stage is %v: it must be 0, 1, 2 or 3", v.value)
			return
		}
		stage = n
	}
	for _, part := range []string{"offload_optimizer", "offload_param"} {
		key := zero + part + ".device"
		device := c.text(key)
		if device == "" || device == "none" {
			continue
		}
		if device != "cpu" && device != "nvme" {
			b.wrongAt(at(key), nearest(device, []string{"cpu", "nvme", "none"}), "%s is %q: it must be cpu, nvme or none", key, device)
			continue
		}
		if needs := map[bool]int{true: 3, false: 1}[part == "offload_param" || device == "nvme"]; stage < needs {
			b.wrongAt(at(key), fmt.Sprintf("set the stage to %d", max(needs, 2)), "%s to %s needs ZeRO stage %d, and the stage is %d", part, device, needs, stage)
		}
		if device == "nvme" && c.text(zero+part+".nvme_path") == "" {
			b.wrongAt(at(key), `"nvme_path": "/local/nvme"`, "%s to nvme has no nvme_path", part)
		}
	}
}

// checkOps compares what the configuration makes DeepSpeed load with what the
// wheel has: what it lacks is compiled on every node, or fails there.
func (b *builder) checkOps(c config, at func(string) Position, ops []string) {
	for _, n := range c.needs() {
		if !slices.Contains(ops, n.op) {
			b.wrongAt(at(n.key), fmt.Sprintf("build one with --ops %s", strings.Join(append(slices.Clone(ops), n.op), ",")),
				"%s needs the operator %s, and the wheel has %s", n.why, n.op, orNone(strings.Join(ops, ", ")))
		}
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// need is an operator that a configuration makes DeepSpeed load, and why.
type need struct{ op, why, key string }

// needs are the operators that a configuration makes DeepSpeed load.
func (c config) needs() []need {
	const zero = "zero_optimization."
	var all []need
	optimizer, param := c.text(zero+"offload_optimizer.device"), c.text(zero+"offload_param.device")
	offloaded := optimizer == "cpu" || optimizer == "nvme"
	kind := strings.ToLower(c.text("optimizer.type"))
	if offloaded {
		op := map[string]string{"adagrad": "cpu_adagrad", "lion": "cpu_lion"}[kind]
		if op == "" {
			op = "cpu_adam"
		}
		if !c.on("optimizer.params.torch_adam") {
			all = append(all, need{op, "CPU offload of the optimizer", zero + "offload_optimizer.device"})
		}
	} else if op := map[string]string{"adam": "fused_adam", "adamw": "fused_adam", "lamb": "fused_lamb", "lion": "fused_lion"}[kind]; op != "" && !c.on("optimizer.params.torch_adam") {
		all = append(all, need{op, "the optimizer " + c.text("optimizer.type"), "optimizer.type"})
	}
	for _, p := range []pair{{"offload_optimizer", optimizer}, {"offload_param", param}} {
		if p.value == "nvme" && !slices.ContainsFunc(all, func(n need) bool { return n.op == "async_io" }) {
			all = append(all, need{"async_io", "NVMe offload", zero + p.key + ".device"})
		}
	}
	return all
}
