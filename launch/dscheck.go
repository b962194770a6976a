package launch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
)

// givenConfig reads and checks the user's configuration.
func (b *builder) givenConfig(r Request) {
	name := b.job.DS.File
	for _, key := range slices.DeleteFunc(configKeys(), func(key string) bool { return key == "ds-auto" }) {
		if b.isSet(key) {
			b.addProblem(b.said[key], "set the value in "+name+", or omit "+b.said["ds-config"].name(),
				"%s applies only to a generated configuration, not to %s", b.said[key].name(), name)
		}
	}
	data, err := r.ReadFile(name)
	if err != nil {
		b.addProblem(b.said["ds-config"], "", "cannot read the DeepSpeed configuration: %v", err)
		return
	}
	job := b.List
	b.List.Lines, b.List.Problems = strings.Split(string(data), "\n"), nil
	place := func(offset int) Position { return lineerr.PositionOf(name, data, offset) }
	c, err := readConfig(data)
	var wrong *configFault
	switch {
	case errors.As(err, &wrong):
		b.Add(place(wrong.offset), "", "invalid DeepSpeed configuration: %s", wrong.reason)
	case err == nil:
		configCheck{b, c, func(key string) Position { return place(c[key].offset) }, r.Ops}.checkAll()
	}
	b.List.Lines, b.List.Problems = job.Lines, append(job.Problems, b.List.Problems...)
}

// configCheck compares a DeepSpeed configuration with the job and the wheel.
type configCheck struct {
	*builder
	config config
	at     func(key string) Position
	ops    []string // the wheel's operators, or nil if unknown
}

func (k configCheck) checkAll() {
	k.checkBatch()
	k.checkZero()
	if k.config.isTrue("bf16.enabled") && k.config.isTrue("fp16.enabled") {
		k.Add(k.at("fp16.enabled"), "enable only one of them: bf16 on Ampere or newer", "bf16 and fp16 are both enabled")
	}
	if k.ops != nil {
		// Compare the operators that DeepSpeed loads for this configuration with those in the wheel.
		// Each node compiles a missing operator, or fails to.
		for _, n := range k.config.neededOps() {
			if !slices.Contains(k.ops, n.op) {
				k.Add(k.at(n.key), fmt.Sprintf("build a wheel with --ops %s", strings.Join(append(slices.Clone(k.ops), n.op), ",")),
					"%s requires the op %s, but the wheel has %s", n.why, n.op, cmp.Or(strings.Join(k.ops, ", "), "none"))
			}
		}
	}
}

// numberOf returns a number of the configuration, or 0 if it is missing or "auto".
func (k configCheck) numberOf(key string) (n int, auto bool) {
	v, said := k.config[key]
	if !said {
		return 0, false
	}
	if v.value == "auto" {
		return 0, true
	}
	n, err := strconv.Atoi(fmt.Sprint(v.value))
	if err != nil || n < 1 {
		k.Add(k.at(key), "", "invalid value %[2]v for %[1]s: want a whole number of at least 1", key, v.value)
		return 0, true
	}
	return n, false
}

// checkBatch checks DeepSpeed's rule: two of the three numbers determine the third, and all
// three must match the number of processes.
func (k configCheck) checkBatch() {
	const trainKey, microKey, accKey = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
	train, a1 := k.numberOf(trainKey)
	micro, a2 := k.numberOf(microKey)
	acc, a3 := k.numberOf(accKey)
	rule := batch{train, micro, acc, k.job.configWorld()}
	if a1 || a2 || a3 || rule.world == 0 {
		return // the Trainer completes them, or only the run knows the processes
	}
	switch {
	case train == 0 && micro == 0:
		k.Add(k.at(accKey), "set "+microKey, "missing %s or %s", trainKey, microKey)
	case train > 0 && !rule.isConsistent():
		k.Add(k.at(trainKey), rule.nearestFits(), "%s %d does not match %s", trainKey, train, rule.factors())
	}
}

// checkZero finds settings that the ZeRO stage does not allow.
func (k configCheck) checkZero() {
	const zero = "zero_optimization."
	stage := 0
	if v, said := k.config[zero+"stage"]; said {
		n, err := strconv.Atoi(fmt.Sprint(v.value))
		if err != nil || n < 0 || n > 3 {
			k.Add(k.at(zero+"stage"), "", "invalid ZeRO stage %v: want 0, 1, 2 or 3", v.value)
			return
		}
		stage = n
	}
	for _, part := range []string{"offload_optimizer", "offload_param"} {
		key := zero + part + ".device"
		device := k.config.textOf(key)
		if device == "" || device == "none" {
			continue
		}
		if device != "cpu" && device != "nvme" {
			k.Add(k.at(key), nearest(device, []string{"cpu", "nvme", "none"}),
				"invalid value %q for %s: want cpu, nvme or none", device, key)
			continue
		}
		if needs := map[bool]int{true: 3, false: 1}[part == "offload_param" || device == "nvme"]; stage < needs {
			k.Add(k.at(key), fmt.Sprintf("set the stage to %d", max(needs, 2)),
				"%s to %s requires ZeRO stage %d, but the stage is %d", part, device, needs, stage)
		}
		if device == "nvme" && k.config.textOf(zero+part+".nvme_path") == "" {
			k.Add(k.at(key), `add "nvme_path": "/local/nvme"`, "%s to nvme requires an nvme_path", part)
		}
	}
}

// need is an operator that DeepSpeed loads for a configuration, and why.
type need struct{ op, why, key string }

// neededOps returns the operators that DeepSpeed loads for a configuration.
func (c config) neededOps() []need {
	const zero = "zero_optimization."
	var all []need
	optimizer := c.textOf(zero + "offload_optimizer.device")
	offloaded := optimizer == "cpu" || optimizer == "nvme"
	kind := strings.ToLower(c.textOf("optimizer.type"))
	if offloaded {
		op := map[string]string{"adagrad": "cpu_adagrad", "lion": "cpu_lion"}[kind]
		op = cmp.Or(op, "cpu_adam")
		if !c.isTrue("optimizer.params.torch_adam") {
			all = append(all, need{op, "CPU offload of the optimizer", zero + "offload_optimizer.device"})
		}
	} else {
		fused := map[string]string{
			"adam": "fused_adam", "adamw": "fused_adam", "lamb": "fused_lamb", "lion": "fused_lion",
		}
		if op := fused[kind]; op != "" && !c.isTrue("optimizer.params.torch_adam") {
			all = append(all, need{op, "the optimizer " + c.textOf("optimizer.type"), "optimizer.type"})
		}
	}
	for _, key := range []string{zero + "offload_optimizer.device", zero + "offload_param.device"} {
		if c.textOf(key) == "nvme" && !slices.ContainsFunc(all, func(n need) bool { return n.op == "async_io" }) {
			all = append(all, need{"async_io", "NVMe offload", key})
		}
	}
	return all
}
