package lint

import (
	_ "embed"
	"slices"
	"sync"

	"github.com/goccy/go-yaml"
)

//go:embed rules.yaml
var rulesFile []byte

var readRules = sync.OnceValues(func() (rules []Rule, err error) {
	err = yaml.UnmarshalWithOptions(rulesFile, &rules, yaml.Strict())
	return rules, err
})

// Rules returns all rules, in the order of rules.yaml.
func Rules() []Rule {
	rules, err := readRules()
	if err != nil {
		panic(err) // the file is part of the program
	}
	return slices.Clone(rules)
}

// checks are the functions that find the mistakes of rules.yaml.
func checks() map[string]func(*subject) []hit { //nolint:revive // a table, however long
	return map[string]func(*subject) []hit{
		"rank-on-batch-line":           rankOnBatchLine,
		"tasks-per-node":               tasksPerNode,
		"python-runs-once":             pythonRunsOnce,
		"torchrun-runs-once":           torchrunRunsOnce,
		"nnodes-mismatch":              nnodesMismatch,
		"workers-in-other-jobs":        workersInOtherJobs,
		"processes-exceed-gpus":        processesExceedGPUs,
		"processes-exceed-visible":     processesExceedVisible,
		"launcher-runs-once":           launcherRunsOnce,
		"srun-deepspeed":               srunDeepSpeed,
		"node-rank-constant":           nodeRankConstant,
		"foreground-loop":              foregroundLoop,
		"fixed-port":                   fixedPort,
		"master-addr-localhost":        masterAddrLocalhost,
		"master-addr-own-host":         masterAddrOwnHost,
		"master-addr-fixed":            masterAddrFixed,
		"master-addr-unset":            masterAddrUnset,
		"master-addr-not-first":        masterAddrNotFirst,
		"no-rendezvous":                noRendezvous,
		"rdzv-id-constant":             rdzvIDConstant,
		"rendezvous-differs":           rendezvousDiffers,
		"c10d-with-node-rank":          c10dWithNodeRank,
		"elastic-without-max-restarts": elasticWithoutMaxRestarts,
		"world-size-as-nodes":          worldSizeAsNodes,
		"gpus-per-node-with-gres":      gpusPerNodeWithGres,
		"not-exported":                 notExported,
		"nccl-debug-always":            ncclDebugAlways,
		"sbatch-line-ignored":          sbatchLineIgnored,
		"variable-in-sbatch-line":      variableInSbatchLine,
		"output-pattern-in-shell":      outputPatternInShell,
		"export-drops-environment":     exportDropsEnvironment,
		"srun-cpus-per-task":           srunCPUsPerTask,
		"sbatch-inside-job":            sbatchInsideJob,
		"slurm-variable-unset":         slurmVariableUnset,
		"gloo-ifname":                  glooInterface,
		"loopback-ifname":              loopbackInterface,
		"port-test":                    portTest,
		"apptainer-without-nv":         apptainerWithoutNV,
		"docker-without-host-network":  dockerWithoutHostNetwork,
		"jax-platform-name":            jaxPlatformName,
		"jax-reads-no-rank":            jaxReadsNoRank,
		"jax-one-task-per-node":        jaxOneTaskPerNode,
		"build-variables-lost":         buildVariablesLost,
		"setup-py-jobs":                setupPyJobs,
		"old-gcc":                      oldGCC,
		"wheel-on-one-node":            wheelOnOneNode,
		"unknown-ignore":               unknownIgnores,
		"shebang-not-first":            shebangNotFirst,
		"dos-line-ends":                dosLineEnds,
		"backslash-not-last":           backslashNotLast,
		"background-without-wait":      backgroundWithoutWait,
		"srun-runs-assignment":         srunRunsAssignment,
		"tasks-contradict":             tasksContradict,
		"one-device-visible":           oneDeviceVisible,
		"program-not-python":           programNotPython,
		"total-processes":              totalProcesses,
		"impossible-port":              impossiblePort,
		"llamafactory-node-rank":       llamaFactoryNodeRank,
		"deepspeed-exports":            deepspeedExports,
		"nccl-gid-index":               gidIndexPinned,
		"deepspeed-build-isolated":     deepspeedBuildIsolated,
	}
}
