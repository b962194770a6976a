package why

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

// Every sign is found in its real lines, has all texts, and can be searched for quickly.
func TestSigns(t *testing.T) {
	t.Parallel()
	table, ids := readTable(), map[string]bool{}
	for _, s := range table.signs {
		if ids[s.ID] || s.ID == "" || s.Title == "" || s.Why == "" || s.Hint == "" || s.Class.order() < 0 {
			t.Errorf("%+v", s)
		}
		ids[s.ID] = true
		if s.ID == exceptionID {
			continue
		}
		if len(s.Lines) == 0 || len(s.Match) == 0 {
			t.Errorf("%s: no lines, or no expressions", s.ID)
		}
		for _, line := range s.Lines {
			if found := table.find(line); found != s {
				t.Errorf("%s is not found in %q, but %+v", s.ID, line, found)
			}
		}
	}
	for _, m := range table.matchers {
		if len(m.literal) < 4 {
			t.Errorf("%s: %s has no word that every match contains", m.sign.ID, m.expr)
		}
	}
}

// causeOf returns the first cause of a log, as "sign:line", with the rank if it is known.
func causeOf(log string) string {
	s := NewScanner(-1)
	for line := range strings.SplitSeq(strings.TrimSuffix(log, "\n"), "\n") {
		s.Add(line)
	}
	h := s.Cause()
	switch {
	case h == nil:
		return ""
	case h.Rank >= 0:
		return fmt.Sprintf("%s:%d rank %d", h.Sign.ID, h.Line, h.Rank)
	}
	return fmt.Sprintf("%s:%d", h.Sign.ID, h.Line)
}

const trace = "Traceback (most recent call last):\n  File \"/home/u/train.py\", line 7, in main\n    step()\n"

// The first cause of one log: the text of each log, and its sign, line and rank.
func TestCause(t *testing.T) {
	t.Parallel()
	var progress strings.Builder
	for i := range survived + 1 {
		fmt.Fprintf(&progress, "step: %d loss: 0.5\n", i)
	}
	for name, c := range map[string]struct{ log, want string }{
		"healthy":                         {progress.String() + "saved timeout=30 checkpoint, out of memory: no\n", ""},
		"empty":                           {"", ""},
		"an exception of the program":     {trace + "KeyError: 'timeout'\n", "exception:4"},
		"configuration is no sign":        {"config: retry_on='out of memory'\n" + trace + "ValueError: the batch is empty\n", "exception:5"},
		"a web service":                   {trace + "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='wandb.ai', port=443): Read timed out.\n", "exception:4"},
		"usage":                           {"usage: train.py [-h] [--timeout TIMEOUT]\ntrain.py: error: the following arguments are required: --data\n", ""},
		"the last of a chain":             {trace + "KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "ValueError: unknown model a\n", "exception:11"},
		"a sign within a chain":           {trace + "OSError: [Errno 28] No space left on device\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "RuntimeError: cannot save\n", "no-space:4"},
		"a sign at the end of a chain":    {trace + "KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n", "gpu-memory:11"},
		"a handled exception with a sign": {trace + "FileNotFoundError: [Errno 2] No such file or directory: 'latest'\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "ValueError: no checkpoint\n", "exception:11"},
		"two handled exceptions":          {trace + "KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "ModuleNotFoundError: No module named 'x'\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "ValueError: unknown model a\n", "exception:18"},
		"handled by ranks side by side":   {trace + trace + "FileNotFoundError: a\nFileNotFoundError: a\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "ValueError: a\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "ValueError: a\n", "missing-file:7"},
		"a missing file as the reason":    {trace + "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'\n\nThe above exception was the direct cause of the following exception:\n\n" + trace + "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset\n", "missing-file:4"},
		"a failed handler is a sign":      {trace + "FileNotFoundError: a\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "OSError: [Errno 28] No space left on device\n", "no-space:11"},
		"a name of the internet":          {trace + "socket.gaierror: [Errno -2] Name or service not known\n\nThe above exception was the direct cause of the following exception:\n\n" + trace + "urllib3.exceptions.NewConnectionError: <urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno -2] Name or service not known\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.wandb.ai', port=443): Max retries exceeded with url: /graphql (Caused by NewConnectionError('<urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno -2] Name or service not known'))\n", "web:18"},
		"a name of Hugging Face":          {trace + "socket.gaierror: [Errno -2] Name or service not known\n\nThe above exception was the direct cause of the following exception:\n\n" + trace + "urllib3.exceptions.NameResolutionError: <urllib3.connection.HTTPSConnection object at 0x7f>: Failed to resolve 'huggingface.co' ([Errno -2] Name or service not known)\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "OSError: We couldn't connect to 'https://huggingface.co' to load the files\n", "hub-offline:11"},
		"a name of a node":                {trace + "socket.gaierror: [Errno -2] Name or service not known\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "RuntimeError: cannot reach gpu01\n", "name:4"},
		"a consequence ends a chain":      {trace + "FileNotFoundError: a\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 1.\n", "missing-file:4"},
		"a line's number is no rank":      {"train.sh: start\n12: error: CUDA error: invalid device ordinal\n", "device-ordinal:2"},
		"nor are those of a compiler":     {"In file x.cu\n12: error: a\n   a++\n    ^\n14: error: nvcc: not found\n   b++\n    ^\n", "no-compiler:5"},
		"a warning that the run survived": {"W0612 10:00:00.1 12 gemm.cc:8] RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\n" + trace + "KeyError: 'a'\n", "exception:5"},
		"only a warning":                  {"W0612 10:00:00.1 12 gemm.cc:8] RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\nsaved\n", ""},
		"a warning, then the error":       {"UserWarning: cannot save: No space left on device\n" + trace + "OSError: [Errno 28] No space left on device\n", "no-space:5"},
		"a warning that explains":         {"UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).\n" + trace + "RuntimeError: No CUDA GPUs are available\n", "driver-old:1"},
		"a warning of IPv6":               {"[W socket.cpp:601] [c10d] The IPv6 network addresses of (gpu01, 29500) cannot be retrieved (gai error: -2 - Name or service not known).\n" + trace + "KeyError: 'a'\n", "exception:5"},
		"NCCL WARN is an error":           {"gpu01:1:1 [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3000\n", "duplicate-gpu:1 rank 1"},
		"a message of several lines":      {trace + "AssertionError: \nThe NVIDIA driver on your system is too old (found version 10010).\n", "driver-old:5"},
		"an ignored exception":            {"Exception ignored in: <function X.__del__ at 0x7f>\n" + trace + "TypeError: 'NoneType' object is not callable\n", ""},
		"cleanup is no cause":             {"Exception ignored in: <function DeepSpeedCPUAdam.__del__ at 0x7f>\n" + trace + "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\nImportError: /r/torch_extensions/cpu_adam.so: undefined symbol: curandCreateGenerator\n", "link-library:6"},
		"the launcher is no cause":        {"[rank1]: " + strings.ReplaceAll(trace, "\n", "\n[rank1]: ") + "IndexError: list index out of range\nE0618 15:59:02.634000 12 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 7) of binary: python\n" + trace + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n", "exception:4 rank 1"},
		"killed, and the peers time out":  {"[rank0]:[E321 02:07:08.408 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)\nfailed (exitcode: -9) local_rank: 3 (pid: 7) of binary: python\n", "killed:2"},
		"only peers":                      {"[rank2]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error\n", "peer-gone:1 rank 2"},
		"the job went on":                 {trace + "KeyError: 'a'\n" + progress.String() + "slurmstepd: error: *** JOB 1 ON gpu1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***\n", "slurm-time:26"},
		"the same again":                  {trace + "KeyError: 'a'\n" + progress.String() + trace + "KeyError: 'b'\n", "exception:29"},
		"colours and a progress bar":      {"\x1b[31m 10%|#  | 1/10\r 20%|## | 2/10\x1b[0m\rRuntimeError: CUDA error: invalid device ordinal\n", "device-ordinal:1"},
		"cut off":                         {trace + "RuntimeError: CUDA error: no kernel image is avai", "exception:4"},
		"labels of srun":                  {"3: " + strings.ReplaceAll(trace, "\n", "\n3: ") + "KeyError: 'a'\n", "exception:4 rank 3"},
		"kubectl logs":                    {"[pod/train-worker-1/pytorch] 2026-01-02T10:00:00.123456789Z [rank9]: Traceback (most recent call last):\n[pod/train-worker-1/pytorch] 2026-01-02T10:00:00.2Z [rank9]: KeyError: 'a'\n", "exception:2 rank 9"},
		"a container's file":              {"2026-01-02T10:00:00.1Z stderr F Traceback (most recent call last):\n2026-01-02T10:00:00.1Z stderr F   File \"/x.py\", line 1, in f\n2026-01-02T10:00:00.1Z stderr F KeyError: 'a'\n", "exception:3"},
		"torchrun's list of failures":     {"Root Cause (first observed failure):\n[0]:\n  time      : 2025-05-21_15:43:03\n  host      : gpu7\n  rank      : 12 (local_rank: 4)\n  exitcode  : -9 (pid: 14750)\n", "killed:6 rank 12"},
		"the code of a traceback":         {"Traceback (most recent call last):\n  File \"/home/u/train.py\", line 7, in main\n    raise RendezvousTimeoutError\ntorch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n", "rendezvous:4"},
		"a data loader's worker":          {trace + "RuntimeError: Caught RuntimeError in DataLoader worker process 0.\nOriginal " + trace + "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)\n", "shared-memory:8"},
		"an exception of a worker":        {trace + "KeyError: Caught KeyError in DataLoader worker process 1.\nOriginal " + trace + "KeyError: 'text'\n", "exception:8"},
		"torchrun says the rank later":    {"E1129 12:08:37.355000 11076 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 9) of binary: python\nFailures:\n[1]:\n  host      : a\n  rank      : 0 (local_rank: 0)\n  exitcode  : -15 (pid: 8)  (SIGTERM)\nRoot Cause (first observed failure):\n[0]:\n  host      : a\n  rank      : 9 (local_rank: 1)\n  exitcode  : -9 (pid: 9)  (SIGKILL)\n", "killed:1 rank 9"},
		"gloo waits for a rank":           {"[rank0]: " + strings.ReplaceAll(trace, "\n", "\n[rank0]: ") + "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete\n", "watchdog:4 rank 0"},
		"scancel":                         {"step: 1\nslurmstepd: error: *** JOB 4711 ON gpu01 CANCELLED AT 2026-11-29T12:08:33 ***\n", "slurm-cancelled:2"},
		"a step that ended":               {trace + "KeyError: 'a'\nslurmstepd: error: *** STEP 4711.0 ON gpu01 CANCELLED AT 2026-11-29T12:08:33 ***\n", "exception:4"},
		"an assertion of the host":        {"python: x.c:7: f: Assertion `n > 0' failed.\n", ""},
		"journalctl":                      {"Nov 29 12:08:31 gpu01 train[12]: " + strings.ReplaceAll(strings.TrimSuffix(trace, "\n"), "\n", "\nNov 29 12:08:32 gpu01 train[12]: ") + "\nNov 29 12:08:33 gpu01 train[12]: KeyError: 'a'\n", "exception:4"},
		"actors of Ray":                   {"(Worker pid=12) " + strings.ReplaceAll(strings.TrimSuffix(trace, "\n"), "\n", "\n(Worker pid=12) ") + "\n(Worker pid=12) MemoryError\n", "host-memory:4"},
		"an exception group":              {"  | Exception Group Traceback (most recent call last):\n  |   File \"/x.py\", line 3, in f\n  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n  +-+---- 1 ----\n    | Traceback (most recent call last):\n    |   File \"/x.py\", line 9, in g\n    | ValueError: bad shard\n", "exception:7"},
		"docker's file":                   {`{"log":"[rank1]: Traceback (most recent call last):\n","stream":"stderr","time":"2026-11-29T12:08:31.1Z"}` + "\n" + `{"log":"[rank1]: KeyError: 'a'\n","stream":"stderr","time":"2026-11-29T12:08:31.2Z"}` + "\n", "exception:2 rank 1"},
		"a message in JSON":               {`{"ts":"2026-11-29T12:08:31Z","level":"error","msg":"failed\nTraceback (most recent call last):\n  File \"/x.py\", line 1, in f\nKeyError: 'a'"}` + "\n", "exception:1"},
		"other JSON":                      {`{"event":{"text":"CUDA error: invalid device ordinal"}}` + "\n", "device-ordinal:1"},
		"broken JSON":                     {`{"a": [` + "\n" + trace + "KeyError: 'a'\n", "exception:5"},
		"a rich traceback":                {"╭─ Traceback (most recent call last) ─╮\n│ /train.py:3 in main │\n╰──────────╯\nKeyError: 'labels'\n", "exception:4"},
	} {
		if got := causeOf(c.log); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func write(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t *testing.T, paths ...string) *Report {
	t.Helper()
	r, err := Read(t.Context(), paths, strings.NewReader("stdin\n"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Of the ranks of a job, the first cause is named with its rank, line and time.
func TestFirstOfManyRanks(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for rank := range 512 {
		files[fmt.Sprintf("none_x/attempt_0/%d/stderr.log", rank)] = fmt.Sprintf("2026-01-02 10:00:00 start\n[rank%d]:[E102 10:10:03.1 ProcessGroupNCCL.cpp:1] [Rank %d] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n", rank, rank)
	}
	files["none_x/attempt_0/77/stderr.log"] = "2026-01-02 10:00:00 start\n2026-01-02 10:00:02 step\n" + trace + "KeyError: 'text'\n"
	files["none_x/attempt_0/78/stderr.log"] = "2026-01-02 10:00:00 start\n2026-01-02 10:00:05 step\n" + trace + "OSError: [Errno 28] No space left on device\n"
	r := read(t, write(t, t.TempDir(), files))
	if r.Cause == nil || *r.Cause.Rank != 77 || r.Cause.Line != 6 || r.Cause.Time != "2026-01-02 10:00:02" || !r.Cause.After || r.Cause.Code != "/home/u/train.py:7" || r.Logs != 512 {
		t.Errorf("%+v", r.Cause)
	}
	if len(r.Followed) != 2 || r.Followed[0].Sign != "watchdog" || r.Followed[0].Count != 510 || r.Followed[1].Sign != "no-space" {
		t.Errorf("%+v", r.Followed)
	}
}

// A clock that is an hour ahead, or behind, does not change which rank was first.
func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	for hour, first := range map[int]string{9: "a", 10: "a", 11: "a"} {
		dir := write(t, t.TempDir(), map[string]string{
			"a.out": fmt.Sprintf("2026-01-02 %02d:00:00 start\n2026-01-02 %02d:20:00 step\nValueError: a\n", hour, hour),
			"b.out": "2026-01-02 10:00:01 start\n2026-01-02 10:20:09 step\nValueError: b\n",
			"c.out": "2026-01-02 10:00:02 start\n2026-01-02 10:20:09 step\n",
		})
		r := read(t, dir)
		if got := strings.TrimSuffix(filepath.Base(r.Cause.Log), ".out"); got != first || (hour != 10) != (len(r.Notes) == 1) {
			t.Errorf("%d: %s, %q", hour, got, r.Notes)
		}
	}
}

// If no log says why, the report names the rank that torchrun says failed first, the ranks whose logs say nothing, or the
// rank that other lines name.
func TestWhichRank(t *testing.T) {
	t.Parallel()
	gone := "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:9\n"
	for name, c := range map[string]struct {
		files        map[string]string
		rank, detail string
	}{
		"torchrun's list": {map[string]string{"a.log": gone + "Root Cause (first observed failure):\n[0]:\n  host      : gpu7\n  rank      : 1 (local_rank: 1)\n  exitcode  : 3 (pid: 9) \n"}, "rank 0, ", "torchrun's first observed failure is rank 1 on gpu7, exit code 3"},
		"silent logs":     {map[string]string{"0/stderr_0.txt": gone, "0/stderr_1.txt": "step\n", "0/stdout_0.txt": "step\n", "rank.2/stderr": ""}, "rank 0, ", "no failure in the logs of rank [1-2]"},
		"other lines":     {map[string]string{"a.log": "ERROR: Unexpected bus error encountered in worker.\n[rank3]: RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error.\n"}, "rank 3, ", ""},
		"two ranks":       {map[string]string{"a.log": "bus error encountered in worker\n[rank3]: DataLoader worker (pid 9) is killed by signal: Bus error.\n[rank4]: DataLoader worker (pid 9) is killed by signal: Bus error.\n"}, "", ""},
		"node of srun":    {map[string]string{"a.log": "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\nsrun: error: gpu02: task 3: Out Of Memory\n"}, "gpu02, ", ""},
	} {
		r := read(t, write(t, t.TempDir(), c.files))
		if r.Cause == nil || !strings.HasPrefix(r.Cause.String(), c.rank+"/") || r.Cause.Detail != c.detail {
			t.Errorf("%s: %+v", name, r.Cause)
		}
	}
}

// A job that runs over New Year has times of two years, of which most logs say neither.
func TestNewYear(t *testing.T) {
	t.Parallel()
	r := read(t, write(t, t.TempDir(), map[string]string{
		"rank0.log": "[2025-12-31 23:00:00] start\n[2026-01-01 00:30:00] step\nValueError: late\n",
		"rank1.log": "I1231 23:00:01.5 1 x.cc:1] start\nI1231 23:50:00.5 1 x.cc:1] step\nValueError: first\n",
		"rank2.log": "Dec 31 23:00:02 gpu3 start\nJan  1 00:20:00 gpu3 step\nValueError: second\n",
	}))
	if r.Cause == nil || r.Cause.Text != "ValueError: first" || len(r.Notes) > 0 {
		t.Errorf("%+v, %q", r.Cause, r.Notes)
	}
}

// A warning is no cause. It is listed, marked as one.
func TestWarnings(t *testing.T) {
	t.Parallel()
	r := read(t, write(t, t.TempDir(), map[string]string{"x.log": "WARNING: cannot cache: Permission denied\nWARNING: OSError: [Errno 28] No space left on device\nWARNING: No space left on device\ndone\n"}))
	if r.Cause != nil || len(r.Followed) != 1 || !r.Followed[0].Warning || r.Followed[0].Count != 2 || len(r.Also) > 0 {
		t.Errorf("%+v", r)
	}
}

// A collective that timed out everywhere names the ranks that did not arrive.
func TestRankBehind(t *testing.T) {
	t.Parallel()
	text := ""
	for _, rank := range []int{0, 1, 3} {
		text += fmt.Sprintf("[rank%d]:[E626 06:24:44.9 ProcessGroupNCCL.cpp:616] [Rank %d] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%d, OpType=ALLREDUCE, Timeout(ms)=600000) ran\n", rank, rank, 808-rank/3)
	}
	r := read(t, write(t, t.TempDir(), map[string]string{"x.log": text}))
	if want := "ALLREDUCE number 808 timed out on 3 ranks; behind: rank 3 (at ALLREDUCE 807); no timeout on rank 2"; r.Cause == nil || r.Cause.Detail != want {
		t.Errorf("%+v", r.Cause)
	}
}

// What is no log of text is skipped or decoded.
func TestBadInput(t *testing.T) {
	t.Parallel()
	var wide []byte
	for _, unit := range utf16.Encode([]rune("ä ok\r\n" + strings.ReplaceAll(trace, "\n", "\r\n") + "KeyError: '😀'\r\n")) {
		wide = append(wide, byte(unit), byte(unit>>8))
	}
	dir := write(t, t.TempDir(), map[string]string{
		"utf16.log": "\xff\xfe" + string(wide), "bare16.log": string(wide), "binary.log": "\x7fELF\x02\x01\x01" + strings.Repeat("\x00\x01\x02", 99),
		"empty.log": "", "holes.log": strings.Repeat("\x00", 300_000) + "\n" + trace + "KeyError: 1\n",
		"long.log": strings.Repeat("x", 3*maxLine) + "\n" + trace + "KeyError: 2\n", "cut.log": "loading", "job.json": `{"last": "KeyError: 1"}`, "latin.log": "caf\xe9\n" + trace + "KeyError: 3",
	})
	for name, want := range map[string]string{"utf16.log": "KeyError: '😀' 5", "bare16.log": "KeyError: '😀' 5", "holes.log": "KeyError: 1 5", "long.log": "KeyError: 2 5", "latin.log": "KeyError: 3 5"} {
		r := read(t, filepath.Join(dir, name))
		if r.Cause == nil || fmt.Sprint(r.Cause.Text, " ", r.Cause.Line) != want {
			t.Errorf("%s: %+v, %q; want %q", name, r.Cause, r.Notes, want)
		}
	}
	r := read(t, dir, "-")
	for _, note := range []string{"binary.log is not a text file (of a compressed log: zcat FILE | dsbuild why); skipped", "empty.log is empty", "cut.log ends within a line"} {
		if !slices.ContainsFunc(r.Notes, func(s string) bool { return strings.Contains(s, note) }) {
			t.Errorf("no note %q in %q", note, r.Notes)
		}
	}
	if r.Logs != 8 { // without job.json and binary.log, with stdin
		t.Errorf("%d logs, want 8", r.Logs)
	}
	link := filepath.Join(t.TempDir(), "latest")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if linked := read(t, link); linked.Logs != 7 {
		t.Errorf("%d logs in a link to a directory, want 7: %q", linked.Logs, linked.Notes)
	}
	if _, err := Read(t.Context(), []string{filepath.Join(dir, "missing")}, nil); err == nil || !strings.Contains(err.Error(), "cannot read log: ") {
		t.Error(err)
	}
	if r := read(t, t.TempDir()); len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "no logs in ") {
		t.Errorf("%q", r.Notes)
	}
}

// Memory does not grow with the log: neither with its lines, nor with the ranks and the text in them.
func TestBoundedMemory(t *testing.T) {
	t.Parallel()
	s := NewScanner(-1)
	s.Add(strings.Repeat("undefined symbol: nccl1 ", 20*maxLine/24)) // a sign's word is compared once in a line
	for i := range 3 * maxStreams {
		s.Add(fmt.Sprintf("[rank%d]: KeyError: %s", i, strings.Repeat("x", 2*maxText)))
	}
	if len(s.streams) > maxStreams+1 || len(s.Cause().Text) > maxText+len("…") || cap([]byte(s.clock)) > 2*headLen {
		t.Errorf("%d streams, %d bytes of text", len(s.streams), len(s.Cause().Text))
	}
}

// No log breaks the scanner, and its words are harmless.
func FuzzScan(f *testing.F) {
	f.Add([]byte(trace + "KeyError: 'a'\n[rank3]: x\r\n"))
	f.Add([]byte("\xff\xfea\x00\n\x00"))
	f.Add([]byte("[1,3]<stderr>:[rank: 99999999999999999999]: 3: 99:99:99 [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=X"))
	for _, s := range Signs() {
		f.Add([]byte(strings.Join(s.Lines, "\n")))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		b := strings.NewReader(string(text))
		r, err := Read(t.Context(), []string{"-"}, io.Reader(b))
		if err != nil {
			t.Fatal(err)
		}
		if r.Cause != nil && strings.ContainsAny(r.Cause.Text+r.Cause.Node+r.Cause.Time+r.Cause.Code, "\x1b\r\n") {
			t.Fatalf("%+v", r.Cause)
		}
	})
}
