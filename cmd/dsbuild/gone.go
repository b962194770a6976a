package main

// goneCommands and goneFlags are the commands and flags that this release no longer has, with what
// replaces each. They are refused as unknown ones, with this hint.
func goneCommands() map[string]string {
	return map[string]string{
		"dsbuild policy":           "the machine that runs dsbuild judges: check a policy with dsbuild verify-wheel --policy FILE WHEEL",
		"dsbuild launch deepspeed": "torchrun starts DeepSpeed programs: dsbuild launch torchrun --zero 2, with the same flags",
	}
}

func goneFlags() map[string]string {
	return map[string]string{
		"sarif":        "--json has the same findings, with line and column",
		"namespace":    "the namespace of dsbuild's signatures is dsbuild",
		"variants":     "the formats are drafts; use the index of your torch, CUDA and GPU: docs/index.md",
		"retry-failed": "run the same command again, it skips finished nodes; or name the nodes of the report with --limit",
	}
}
