package main

// goneCommands and goneFlags are the commands and the flags (of a command, or of all) that this
// release no longer has, and goneValues the values of flags, with what replaces each. They are refused as unknown ones,
// with this hint.
func goneCommands() map[string]string {
	return map[string]string{
		"dsbuild policy":           "the machine that runs dsbuild judges: check a policy with dsbuild verify-wheel --policy FILE WHEEL",
		"dsbuild launch deepspeed": "torchrun starts DeepSpeed programs: dsbuild launch torchrun --zero 2; --limit instead of --include and --exclude, no --form",
	}
}

func goneFlags() map[string]string {
	const dryRun = "dsbuild wheel --dry-run says it for one torch and Python"
	return map[string]string{
		"dsbuild launch lint --sarif": "--json has the same findings, with line and column",
		"dsbuild sign --namespace":    "the namespace of dsbuild's signatures is dsbuild",
		"dsbuild index --variants":    "the formats are drafts; use the index of your torch, CUDA and GPU: docs/index.md",
		"dsbuild toolchains --matrix": dryRun,
		"dsbuild toolchains --gpu":    dryRun,
		"--retry-failed":              "run the same command again, it skips finished nodes; or name the nodes of the report with --limit",
	}
}

func goneValues() map[string]string {
	const settings = "--json prints all settings"
	const check = "dsbuild check no longer has it; leave it out"
	return map[string]string{
		"deps=index":         "with --deps bundle all nodes get the same packages",
		"launcher=deepspeed": "torchrun starts DeepSpeed programs",
		"report=.xml":        "FILE.json, and the exit code",
		"skip=clock":         check,
		"skip=ssh":           check,
		"to=json":            settings,
		"to=yaml":            settings,
		"to=ansible":         settings,
		"to=slurm":           settings,
	}
}
