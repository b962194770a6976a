package launch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
}

// deepspeed completes what is said about DeepSpeed's configuration, or reads
// the one that is given, and checks it.
func (b *builder) deepspeed(r Request) {
	b.filters()
	b.checkRemote()
	if b.job.Nodes.Max > 1 && len(b.job.Hosts) == 0 {
		b.wrong(b.said["nodes"], "add -i INVENTORY", "DeepSpeed's launcher reaches the nodes itself: a hostfile of %d nodes needs their names", b.job.Nodes.Max)
		return
	}
	ds := &b.job.DS
	if ds.File != "" {
		b.givenConfig(r)
		return
	}
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
	if ds.Precision == "" {
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
	if ds.Auto {
		return
	}
	b.batches()
}

// batches completes the three numbers of the batch rule.
func (b *builder) batches() {
	ds, world := &b.job.DS, b.job.ActiveSlots()
	if ds.TrainBatch > 0 {
		micro := max(ds.MicroBatch, 1)
		if ds.MicroBatch == 0 && ds.Accumulation > 0 {
			micro = ds.TrainBatch / (ds.Accumulation * world)
		}
		acc := ds.Accumulation
		if acc == 0 {
			acc = ds.TrainBatch / (micro * world)
			if ds.MicroBatch == 0 {
				micro, acc = ds.TrainBatch/world, 1
			}
		}
		if micro*acc*world != ds.TrainBatch {
			b.wrongAt(b.placeOf("train-batch"), nearBatch(ds.TrainBatch, max(micro, 1)*world),
				"train-batch %d is not micro-batch x accumulation x processes: no whole numbers make it of %s", ds.TrainBatch, factors(ds.MicroBatch, ds.Accumulation, world))
			return
		}
		ds.MicroBatch, ds.Accumulation = micro, acc
		return
	}
	ds.MicroBatch, ds.Accumulation = max(ds.MicroBatch, 1), max(ds.Accumulation, 1)
	ds.TrainBatch = ds.MicroBatch * ds.Accumulation * world
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

// nearBatch names the batches beside the one that was wanted.
func nearBatch(batch, unit int) string {
	low := batch / unit * unit
	if low == 0 {
		return fmt.Sprintf("%d is the least", unit)
	}
	return fmt.Sprintf("%d or %d would do", low, low+unit)
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
	c := object{
		{"train_batch_size", orAuto(ds.TrainBatch)},
		{"train_micro_batch_size_per_gpu", orAuto(ds.MicroBatch)},
		{"gradient_accumulation_steps", orAuto(ds.Accumulation)},
		{"gradient_clipping", orAuto(1.0)},
	}
	for _, p := range []string{"bf16", "fp16"} {
		if p == ds.Precision || ds.Auto {
			c = append(c, pair{p, object{{"enabled", orAuto(true)}}})
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
	for _, key := range []string{"zero", "offload", "nvme-path", "precision", "train-batch", "micro-batch", "accumulation", "ds-auto"} {
		if b.has(key) {
			b.wrong(b.said[key], "say it in "+name+", or leave --config out", "%s is for a configuration that is rendered, and %s is given", key, name)
		}
	}
	data, err := r.ReadFile(name)
	if err != nil {
		b.wrong(b.said["ds-config"], "", "cannot read the DeepSpeed configuration: %v", err)
		return
	}
	b.job.DSText = string(data)
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
	world := b.job.ActiveSlots()
	if a1 || a2 || a3 {
		return // the Trainer fills in what makes it right
	}
	switch {
	case train == 0 && micro == 0:
		b.wrongAt(at(accKey), "give "+microKey, "neither %s nor %s is given", trainKey, microKey)
		return
	case train == 0:
		return
	case micro == 0 && acc == 0:
		micro, acc = train/world, 1
	case micro == 0:
		micro = train / world / acc
	case acc == 0:
		acc = train / micro / world
	}
	if micro*acc*world != train {
		b.wrongAt(at(trainKey), nearBatch(train, max(micro, 1)*world),
			"%s is %d, which is not %d (micro batch) x %d (accumulation) x %s", trainKey, train, micro, acc, plural(world, "process"))
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
