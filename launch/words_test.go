package launch

import (
	"bytes"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// stage is a folder in which a rendering runs, with programs that stand in for
// those of a cluster: each says what it was given.
type stage struct {
	dir string
	bin string
	env []string
}

// tell is a program that says its words and the variables that matter, each ended
// by a NUL, in base64.
const tell = `#!/bin/bash
vars() {
  for name in MASTER_ADDR MASTER_PORT RDZV_ID A MOTD OMP_NUM_THREADS SLURM_NODEID; do
    [[ ! -v $name ]] || printf '%s=%s\0' "$name" "${!name}"
  done
}
echo "told $(printf '%s\0' "$@" | base64 -w0) $(vars | base64 -w0)"
`

// srun runs its command once for each node, as Slurm does, and ends with the
// worst code.
const srun = `#!/bin/bash
while [[ $1 == --* ]]; do shift; done
worst=0
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
  SLURM_NODEID=$node SLURMD_NODENAME=n$((node + 1)) SLURM_PROCID=$node SLURM_LOCALID=0 SLURM_NTASKS=$SLURM_JOB_NUM_NODES "$@" || worst=$?
done
exit $worst
`

func newStage(t *testing.T, files []File) *stage {
	t.Helper()
	s := &stage{dir: t.TempDir()}
	s.bin = filepath.Join(s.dir, "bin")
	s.write(t, "bin/torchrun", tell)
	s.write(t, "bin/docker", tell)
	s.write(t, "bin/srun", srun)
	s.write(t, "bin/scontrol", "#!/bin/bash\n[[ $* == 'show hostnames n[1-4]' ]] && printf 'n%d\\n' 1 2 3 4\n")
	for _, f := range files {
		s.write(t, f.Name, f.Text)
	}
	s.env = []string{
		"PATH=" + s.bin + ":" + os.Getenv("PATH"), "HOME=" + s.dir, "LC_ALL=C.UTF-8",
		"SLURM_JOB_ID=100001", "SLURM_JOB_NODELIST=n[1-4]", "SLURM_JOB_NUM_NODES=2", "SLURM_SUBMIT_DIR=" + s.dir, "SLURMD_NODENAME=n1",
	}
	return s
}

func (s *stage) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// run runs a script of the rendering and returns what it printed.
func (s *stage) run(t *testing.T, script string, env ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command("bash", script)
	cmd.Dir, cmd.Env = s.dir, append(slices.Clone(s.env), env...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "owned")); err == nil {
		t.Errorf("%s ran a word of the user's", script)
	}
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}

// told is what tell printed.
type told struct {
	Argv []string
	Env  map[string]string
}

func heard(t *testing.T, text string) []told {
	t.Helper()
	var all []told
	for line := range strings.Lines(text) {
		words := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		if len(words) != 3 || words[0] != "told" {
			continue
		}
		one := told{Argv: unpacked(t, words[1]), Env: map[string]string{}}
		for _, v := range unpacked(t, words[2]) {
			name, value, _ := strings.Cut(v, "=")
			one.Env[name] = value
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		t.Fatalf("no program was run:\n%s", text)
	}
	return all
}

func unpacked(t *testing.T, text string) []string {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
}

func sampleNamed(t *testing.T, name string) (*Job, []File) {
	t.Helper()
	all := samples()
	i := slices.IndexFunc(all, func(s sample) bool { return s.name == name })
	j := all[i].job(t)
	files, err := j.Render()
	if err != nil {
		t.Fatal(err)
	}
	return j, files
}

// Whatever the words of the user are, the program gets them as they were given,
// and no shell on the way makes anything of them.
func TestWordsArrive(t *testing.T) {
	for name, script := range map[string]string{
		"slurm-hostile":    "train.sbatch",
		"torchrun-hostile": "torchrun.sh",
		"docker-hostile":   "docker.sh",
	} {
		_, files := sampleNamed(t, name)
		out, log, code := newStage(t, files).run(t, script)
		if code != 0 {
			t.Fatalf("%s: %d\n%s", name, code, log)
		}
		for _, one := range heard(t, out) {
			if n := len(one.Argv) - len(hostile()); n < 0 || !slices.Equal(one.Argv[n:], hostile()) {
				t.Errorf("%s: the program got\n%q\nwant\n%q", name, one.Argv, hostile())
			}
		}
	}
}

// Each node of a Slurm job has its own rank, and all have the address of the
// first and a port that follows from the job's number.
func TestSlurmRanks(t *testing.T) {
	_, files := sampleNamed(t, "slurm-hostile")
	out, _, _ := newStage(t, files).run(t, "train.sbatch", "SLURM_GPUS_ON_NODE=4")
	nodes := heard(t, out)
	if len(nodes) != 2 {
		t.Fatalf("%d nodes", len(nodes))
	}
	for i, n := range nodes {
		want := []string{"--nnodes=2", "--node-rank=" + string(rune('0'+i)), "--master-addr=n1", "--master-port=10001", "--nproc-per-node=4"}
		if !slices.Equal(n.Argv[:5], want) {
			t.Errorf("%q, want %q", n.Argv[:5], want)
		}
		if n.Env["A"] != "'$(touch owned)'" || n.Env["OMP_NUM_THREADS"] != "8" {
			t.Errorf("%q", n.Env)
		}
	}
}

func TestSlurmC10d(t *testing.T) {
	_, files := sampleNamed(t, "slurm-medium")
	out, _, _ := newStage(t, files).run(t, "train.sbatch")
	for i, n := range heard(t, out) {
		want := []string{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=100001", "--rdzv-endpoint=n1:10001", "--local-addr=n" + string(rune('1'+i)), "--nproc-per-node=8"}
		if !slices.Equal(n.Argv[:6], want) {
			t.Errorf("%q, want %q", n.Argv[:6], want)
		}
		if slices.ContainsFunc(n.Argv, func(w string) bool { return strings.HasPrefix(w, "--node-rank") }) {
			t.Error("c10d and a rank")
		}
	}
}

// An elastic job is done when enough agents are, whatever srun says of those
// that were lost; and not when too few are.
func TestElasticVerdict(t *testing.T) {
	_, files := sampleNamed(t, "slurm-elastic")
	for lost, want := range map[string]int{"0": 0, "1": 0, "2": 1, "3": 1} {
		s := newStage(t, files)
		agent := strings.ReplaceAll("#!/bin/bash\necho 'a line of the program'\n[[ $SLURM_NODEID -ge LOST ]] || exit 137\n", "LOST", lost)
		s.write(t, "bin/torchrun", agent)
		out, log, code := s.run(t, "train.sbatch", "SLURM_JOB_NUM_NODES=3")
		if code != want || strings.Count(out, "a line of the program\n") != 3 {
			t.Errorf("%s of 3 lost: code %d, want %d\n%s%s", lost, code, want, out, log)
		}
	}
}

// Before the time limit the batch script gets a signal and requeues the job, once; what srun returns stays. Where the user's
// --signal is for the program, torchrun ignores it.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	for _, want := range []struct {
		name, signal, after, said string
		code                      int
	}{
		{"slurm-pyxis", "USR1", "400", "requeue 100001\n", 3},
		{"slurm-pyxis", "USR1", "30", "", 3}, // the limit is too short
		{"slurm-all", "USR2", "400", "requeue 100001\n", 3},
		{"jax-slurm-container", "USR1", "400", "requeue 100001\n", 3},
		{"slurm-apptainer", "USR1", "400", "requeue 100001\n", 1},
		{"slurm-medium", "", "400", "", 3},
	} {
		name := want.name
		_, files := sampleNamed(t, name)
		s := newStage(t, files)
		script := files[0].Name
		text, err := os.ReadFile(filepath.Join(s.dir, script))
		if err != nil {
			t.Fatal(err)
		}
		s.write(t, script, strings.NewReplacer("source /opt/conda/bin/activate train", "true", "cd -- '/work/my code'", "", "set -euo pipefail", "set -euo pipefail; export BATCH=$$").Replace(string(text)))
		s.write(t, "bin/scontrol", "#!/bin/bash\n[[ $1 != requeue ]] || echo \"$@\" >>\"$HOME/said\"\n[[ $1 == show ]] && echo n1\n")
		s.write(t, "bin/srun", "#!/bin/bash\nprintf '%s\\n' \"$@\" >\"$HOME/argv\"\n[[ -z $SIGNAL ]] || kill -$SIGNAL \"$BATCH\"\nsleep 0.2\nexit 3\n")
		_, log, code := s.run(t, script, "SIGNAL="+want.signal, "WANDB_API_KEY=x", "SECONDS="+want.after)
		said, _ := os.ReadFile(filepath.Join(s.dir, "said")) //nolint:errcheck // none was said
		argv, err := os.ReadFile(filepath.Join(s.dir, "argv"))
		if code != want.code || string(said) != want.said || err != nil {
			t.Errorf("%s: code %d, %q, %v\n%s", name, code, said, err, log)
		}
		if ignores := strings.Contains(string(argv), `trap "" USR2; exec torchrun`); ignores != (want.signal == "") {
			t.Errorf("%s: %s", name, argv)
		}
	}
}

// The script of many nodes refuses what would only hang, and takes WORLD_SIZE
// for the number of nodes where nothing else says it.
func TestTorchrunVariables(t *testing.T) {
	_, files := sampleNamed(t, "torchrun")
	for _, c := range []struct {
		env    []string
		code   int
		stderr string
		argv   []string
	}{
		{nil, 0, "", []string{"--nnodes=1", "--nproc-per-node=4", "--node-rank=0", "--master-addr=localhost", "--master-port=29500"}},
		{[]string{"NNODES=2", "NODE_RANK=1", "MASTER_ADDR=192.168.1.100", "MASTER_PORT=1234", "NPROC_PER_NODE=8", "WORLD_SIZE=16"}, 0, "", []string{"--nnodes=2", "--nproc-per-node=8", "--node-rank=1", "--master-addr=192.168.1.100", "--master-port=1234"}},
		{[]string{"WORLD_SIZE=2", "MASTER_ADDR=g1"}, 0, "warning: WORLD_SIZE=2 is used as the number of nodes", []string{"--nnodes=2"}},
		{[]string{"NNODES=2"}, 2, "each of the 2 nodes would wait for itself", nil},
		{[]string{"NNODES=2", "NODE_RANK=2", "MASTER_ADDR=g1"}, 2, "ranks are numbers from 0 to NNODES-1", nil},
		{[]string{"NNODES=2", "NODE_RANK=x", "MASTER_ADDR=g1"}, 2, "NODE_RANK is x", nil},
		{[]string{"NNODES=1:2", "MASTER_ADDR=g1"}, 2, "NNODES is 1:2", nil},
	} {
		out, log, code := newStage(t, files).run(t, "torchrun.sh", c.env...)
		if code != c.code || !strings.Contains(log, c.stderr) || (c.stderr == "" && log != "") {
			t.Errorf("%v: code %d, %q", c.env, code, log)
			continue
		}
		if code == 0 && !slices.Equal(heard(t, out)[0].Argv[:len(c.argv)], c.argv) {
			t.Errorf("%v: %q, want %q", c.env, heard(t, out)[0].Argv, c.argv)
		}
	}
}

// The block of a node brings its own rank and what the inventory says of it.
func TestNodeBlocks(t *testing.T) {
	_, files := sampleNamed(t, "torchrun-c10d-nodes")
	s := newStage(t, files)
	s.write(t, "bin/module", "#!/bin/bash\n")
	for name, addr := range map[string]string{"node-0-gpu01.sh": "192.168.1.100", "node-1-gpu02.sh": "192.168.1.101"} {
		text, err := os.ReadFile(filepath.Join(s.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		s.write(t, name, strings.ReplaceAll(string(text), "/opt/train/venv/bin/python", filepath.Join(s.bin, "torchrun")))
		out, log, code := s.run(t, name)
		want := []string{"-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=train", "--rdzv-endpoint=192.168.1.100:29500", "--local-addr=" + addr, "train.py"}
		if code != 0 || !slices.Equal(heard(t, out)[0].Argv[:9], want) {
			t.Errorf("%s: code %d\n%s\n%s\nwant %q", name, code, log, out, want)
		}
	}
}

// submit.sh learns where the master runs, tells the workers, and leaves nothing
// of a job in the environment; a master that ends early takes nothing with it.
func TestSubmit(t *testing.T) {
	_, files := sampleNamed(t, "slurm-workers")
	const sbatch = `#!/bin/bash
n=$(cat count 2>/dev/null || echo 700); echo $((n + 1)) >count
echo "$((n + 1));cluster"
echo "sbatch ${*##*/} $MASTER_ADDR $MASTER_PORT $RDZV_ID $MASTER_JOB procid=${SLURM_PROCID-} conf=${SLURM_CONF-}" >>calls
[[ ! -e full || $n -lt 702 ]]
`
	squeue := func(state string) string {
		return "#!/bin/bash\nif [[ ! -e asked ]]; then echo PENDING '(null)'; elif [[ -n '" + state + "' ]]; then echo " + state + " g1001; fi; touch asked\n"
	}
	stageFor := func(state string) *stage {
		s := newStage(t, files)
		s.write(t, "bin/sbatch", sbatch)
		s.write(t, "bin/squeue", squeue(state))
		s.write(t, "bin/sleep", "#!/bin/bash\n")
		s.write(t, "bin/scancel", "#!/bin/bash\necho scancel \"$@\" >>calls\n")
		return s
	}
	calls := func(s *stage) string {
		text, err := os.ReadFile(filepath.Join(s.dir, "calls"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	s := stageFor("RUNNING")
	out, log, code := s.run(t, "submit.sh", "SLURM_PROCID=3", "SLURM_CONF=/etc/s.conf")
	worker := "sbatch --parsable --export=ALL worker.sbatch g1001 10701 701 701 procid= conf=/etc/s.conf\n"
	want := "sbatch --parsable master.sbatch     procid= conf=/etc/s.conf\n" + strings.Repeat(worker, 3)
	if got := calls(s); code != 0 || strings.ReplaceAll(got, "--export=ALL "+s.dir+"/", "--export=ALL ") != want {
		t.Errorf("code %d\n%s\n%s\ngot\n%s\nwant\n%s", code, out, log, got, want)
	}
	// Slurm's controller may be busy: it is asked again. A job that it does not know is gone.
	s = stageFor("RUNNING")
	s.write(t, "bin/squeue", "#!/bin/bash\necho asked >>questions\ncase $(wc -l <questions) in [1-9]) echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1 ;; *) echo RUNNING g1001 ;; esac\n")
	if _, log, code := s.run(t, "submit.sh"); code != 0 || strings.Contains(calls(s), "scancel") || !strings.Contains(calls(s), "worker.sbatch g1001") {
		t.Errorf("squeue that fails a few times: %d %s\n%s", code, log, calls(s))
	}
	s.write(t, "bin/squeue", "#!/bin/bash\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n")
	if _, log, code := s.run(t, "submit.sh"); code != 1 || !strings.Contains(log, "squeue failed: slurm_load_jobs error: Unable") {
		t.Errorf("squeue that never answers: %d %s", code, log)
	}
	s.write(t, "bin/squeue", "#!/bin/bash\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n")
	if _, log, code := s.run(t, "submit.sh"); code != 1 || !strings.Contains(log, "ended before its workers started (gone)") {
		t.Errorf("a job that is not known: %d %s", code, log)
	}
	s = stageFor("")
	if _, log, code := s.run(t, "submit.sh"); code != 1 || !strings.Contains(log, "ended before its workers started (gone)") {
		t.Errorf("a master that is gone: %d %s", code, log)
	}
	s = stageFor("RUNNING")
	s.write(t, "full", "")
	if _, _, code := s.run(t, "submit.sh"); code == 0 || !strings.HasSuffix(calls(s), "scancel 701 702\n") {
		t.Errorf("a worker that cannot be submitted: %d\n%s", code, calls(s))
	}
}

// A worker that starts when the master is gone does not wait for it.
func TestLateWorker(t *testing.T) {
	_, files := sampleNamed(t, "slurm-workers")
	env := []string{"MASTER_ADDR=g1", "MASTER_PORT=10701", "RDZV_ID=701", "MASTER_JOB=701"}
	s := newStage(t, files)
	s.write(t, "bin/squeue", "#!/bin/bash\necho RUNNING\n")
	out, _, code := s.run(t, "worker.sbatch", env...)
	if want := []string{"--nnodes=4", "--nproc-per-node=8", "--rdzv-backend=c10d", "--rdzv-id=701", "--rdzv-endpoint=g1:10701", "--rdzv-conf=join_timeout=3600", "--local-addr=n1"}; code != 0 || !slices.Equal(heard(t, out)[0].Argv[:7], want) {
		t.Errorf("%d %s", code, out)
	}
	// Where squeue does not answer, torch's own limit is what ends the wait.
	s.write(t, "bin/squeue", "#!/bin/bash\necho 'Unable to contact slurm controller' >&2; exit 1\n")
	if _, log, code := s.run(t, "worker.sbatch", env...); code != 0 {
		t.Errorf("%d %s", code, log)
	}
	s.write(t, "bin/squeue", "#!/bin/bash\necho COMPLETED\n")
	if _, log, code := s.run(t, "worker.sbatch", env...); code != 1 || !strings.Contains(log, "has ended") {
		t.Errorf("%d %s", code, log)
	}
	s.write(t, "bin/squeue", "#!/bin/bash\necho 'Invalid job id specified' >&2; exit 1\n")
	if _, log, code := s.run(t, "worker.sbatch", env...); code != 1 || !strings.Contains(log, "has ended") {
		t.Errorf("%d %s", code, log)
	}
	if _, log, code := s.run(t, "worker.sbatch"); code == 0 || !strings.Contains(log, "MASTER_ADDR: is not set: start with submit.sh") {
		t.Errorf("%d %s", code, log)
	}
}

func TestAIStationVariables(t *testing.T) {
	_, files := sampleNamed(t, "aistation")
	base := []string{"MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"}
	for _, c := range []struct {
		env  []string
		want []string
	}{
		{base, []string{"--nnodes=2:2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=task-medical-qwen", "--rdzv-endpoint=127.0.0.1:1", "--local-addr=127.0.0.1", "--max-restarts=0", "main.py"}},
		{append(base, "NNODES=3", "NPROC_PER_NODE=8", "RDZV_ID=x"), []string{"--nnodes=3:3", "--nproc-per-node=8", "--rdzv-backend=c10d", "--rdzv-id=x", "--rdzv-endpoint=127.0.0.1:1", "--local-addr=127.0.0.1", "--max-restarts=0", "main.py"}},
		{append(base, "MIN_NNODES=2", "MAX_NNODES=5"), []string{"--nnodes=2:5", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=task-medical-qwen", "--rdzv-endpoint=127.0.0.1:1", "--local-addr=127.0.0.1", "--max-restarts=3", "main.py"}},
	} {
		out, log, code := newStage(t, files).run(t, "train.sh", c.env...)
		if code != 0 || !slices.Equal(heard(t, out)[0].Argv, c.want) {
			t.Errorf("%v: %d %s %s", c.env, code, out, log)
		}
	}
	if _, log, code := newStage(t, files).run(t, "train.sh"); code == 0 || !strings.Contains(log, "choose Master/Worker") {
		t.Errorf("%d %s", code, log)
	}
	// The name of the master may come late; one that never comes is said.
	s := newStage(t, files)
	s.write(t, "bin/sleep", "#!/bin/bash\n")
	s.write(t, "bin/python3", "#!/bin/bash\necho asked >>asked\n[[ $(wc -l <asked) -ge 3 ]] && echo 10.0.0.7\n")
	if out, _, _ := s.run(t, "train.sh", base...); !slices.Contains(heard(t, out)[0].Argv, "--local-addr=10.0.0.7") {
		t.Error(out)
	}
	s.write(t, "bin/python3", "#!/bin/bash\nexit 1\n")
	if _, log, code := s.run(t, "train.sh", base...); code == 0 || !strings.Contains(log, "127.0.0.1 does not resolve") {
		t.Errorf("%d %s", code, log)
	}
}

// A manifest says the words as they are, once Kubernetes has had its turn.
func TestK8sWords(t *testing.T) {
	j, files := sampleNamed(t, "k8s-hostile")
	docs := manifests(t, files[0].Text)
	c := at(t, docs[0], "spec", "pytorchReplicaSpecs", "Master", "template", "spec", "containers", 0)
	var got []string
	for _, w := range at(t, c, "command").([]any) {
		got = append(got, strings.ReplaceAll(w.(string), "$$", "$"))
	}
	if want := append([]string{"torchrun", j.Script}, j.Args...); !reflect.DeepEqual(got, want) {
		t.Errorf("%q\nwant\n%q", got, want)
	}
	if v := at(t, c, "env", 1, "value"); strings.ReplaceAll(v.(string), "$$", "$") != j.Env[0].Value {
		t.Errorf("%q", v)
	}
}
