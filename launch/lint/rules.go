package lint

import (
	_ "embed"
	"iter"
	"slices"
	"sync"

	"github.com/goccy/go-yaml"

	"github.com/dsbuild/dsbuild/launch/lint/script"
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

// checks returns the function of each rule in rules.yaml.
func checks() map[string]func(*subject) []hit { //nolint:revive // a table, however long
	return map[string]func(*subject) []hit{
		"rank-on-batch-line":           rankOnBatchLine,
		"tasks-per-node":               tasksPerNode,
		"python-runs-once":             pythonRunsOnce,
		"nnodes-mismatch":              nnodesMismatch,
		"workers-in-other-jobs":        workersInOtherJobs,
		"processes-exceed-gpus":        each(launches, processesExceedGPUs),
		"launcher-runs-once":           each(launches, launcherRunsOnce),
		"node-rank-constant":           nodeRankConstant,
		"fixed-port":                   fixedPort,
		"master-addr-localhost":        masterAddrLocalhost,
		"master-addr-fixed":            masterAddrFixed,
		"master-addr-unset":            masterAddrUnset,
		"master-addr-not-first":        masterAddrNotFirst,
		"no-rendezvous":                each(launches, noRendezvous),
		"rdzv-id-constant":             each(launches, rdzvIDConstant),
		"c10d-with-node-rank":          each(launches, c10dWithNodeRank),
		"elastic-without-max-restarts": each(launches, elasticWithoutMaxRestarts),
		"world-size-as-nodes":          worldSizeAsNodes,
		"nccl-debug-always":            each((*subject).sets, ncclDebugAlways),
		"sbatch-line-ignored":          sbatchLineIgnored,
		"variable-in-sbatch-line":      variableInSbatchLine,
		"output-pattern-in-shell":      outputPatternInShell,
		"export-drops-environment":     exportDropsEnvironment,
		"sbatch-inside-job":            sbatchInsideJob,
		"gloo-ifname":                  glooInterface,
		"loopback-ifname":              each((*subject).sets, loopbackInterface),
		"port-test":                    portTest,
		"jax-platform-name":            each((*subject).sets, jaxPlatformName),
		"jax-reads-no-rank":            jaxReadsNoRank,
		"jax-one-task-per-node":        jaxOneTaskPerNode,
		"build-variables-lost":         buildVariablesLost,
		"setup-py-jobs":                setupPyJobs,
		"old-gcc":                      oldGCC,
		"wheel-on-one-node":            wheelOnOneNode,
		"shebang-not-first":            shebangNotFirst,
		"dos-line-ends":                dosLineEnds,
		"backslash-not-last":           backslashNotLast,
		"background-without-wait":      backgroundWithoutWait,
		"one-device-visible":           oneDeviceVisible,
		"total-processes":              each(launches, totalProcesses),
		"llamafactory-node-rank":       llamaFactoryNodeRank,
		"deepspeed-master-addr":        each(launches, deepspeedMasterAddr),
		"nccl-gid-index":               each((*subject).sets, gidIndexPinned),
		"deepspeed-build-isolated":     each(commands, deepspeedBuildIsolated),
		"placeholder":                  placeholder,
		"command-cut":                  commandCut,
		"output-folder":                outputFolder,
		"not-exported":                 notExported,
		"set-to-itself":                setToItself,
		"launcher-variable-unset":      launcherVariableUnset,
		"port-per-task":                portPerTask,
		"same-port":                    samePort,
		"step-waits":                   stepWaits,
		"hostfile-slot":                hostfileSlot,
		"jax-tasks-exceed-gpus":        jaxTasksExceedGPUs,
		"jax-variable-unread":          each((*subject).sets, jaxVariableUnread),
		"srun-keeps-running":           srunKeepsRunning,
		"master-addr-own-host":         each(launches, masterAddrOwnHost),
		"node-rank-too-high":           each(launches, nodeRankTooHigh),
		"devices-ignored":              each(launches, devicesIgnored),
		"deepspeed-without-hostfile":   each(launches, deepspeedWithoutHostfile),
		"tasks-by-cpus":                tasksByCPUs,
		"signal-without-trap":          signalWithoutTrap,
		"unread-part":                  unreadPart,
		"sbatch-words":                 sbatchWords,
		"slurm-option-unknown":         slurmOptionUnknown,
		"slurm-value":                  slurmValue,
		"slurm-variable-unset":         slurmVariableUnset,
		"assignment-blank":             assignmentBlank,
		"launcher-options":             launcherOptions,
		"launcher-option-late":         each(launches, launcherOptionLate),
		"master-addr-several":          masterAddrSeveral,
		"port-value":                   portValue,
		"mpirun-exports":               mpiExports,
		"script-folder":                scriptFolder,
		"foreground-loop":              foregroundLoop,
		"no-gpus":                      noGPUs,
		"one-cpu":                      oneCPU,
		"nccl-ib-off":                  each((*subject).sets, transportOff),
		"exit-status-lost":             exitStatusLost,
		"conda-in-batch":               condaInBatch,
		"container-without-gpus":       containerWithoutGPUs,
		"variable-misspelled":          variableMisspelled,
	}
}

// each turns a rule about a launch, a command or an assignment into a rule about the script.
func each[T any](all func(*subject) iter.Seq[T], find func(*subject, T) []hit) func(*subject) []hit {
	return func(s *subject) (hits []hit) {
		for one := range all(s) {
			hits = append(hits, find(s, one)...)
		}
		return hits
	}
}

func launches(s *subject) iter.Seq[*launch] { return slices.Values(s.launches) }

func commands(s *subject) iter.Seq[*script.Command] { return slices.Values(s.Commands) }
