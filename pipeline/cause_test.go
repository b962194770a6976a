package pipeline

import (
	"errors"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// The diagnosis that explains the others is named with its file, and not the
// last lines of templates.
func TestCause(t *testing.T) {
	const templates = "/env/torch/csrc/api/include/x.h:12:3: note: candidate: template<class T> bool operator!=(T)\n"
	noise := strings.Repeat(templates, 40)
	const end = "error: csrc/adam/fused_adam_frontend.cpp: exit code 1"
	for name, c := range map[string]struct {
		said, cause, hint string
	}{
		"C++20": {
			noise + "/env/ivalue_inl.h:1705:3: error: no match for 'operator!='\n" + noise +
				"/env/torch/all.h:9:2: error: #error C++20 or later compatible compiler is required to use PyTorch.\n    9 | #error C++20 or later compatible compiler is required to use PyTorch.\n      |  ^~~~~\n" + noise + end,
			"/env/torch/all.h:9:2: error: #error C++20 or later compatible compiler is required to use PyTorch.", "C++20",
		},
		"missing header": {
			noise + "csrc/includes/gemm_test.h:11:10: fatal error: cuda_profiler_api.h: No such file or directory\n" + noise + end,
			"csrc/includes/gemm_test.h:11:10: fatal error: cuda_profiler_api.h", "install what provides cuda_profiler_api.h: the CUDA toolkit component profiler",
		},
		"missing header of nvcc": {
			noise + "csrc/a.cu(11): catastrophic error: cannot open source file \"curand_kernel.h\"\n" + noise + end,
			"csrc/a.cu(11): catastrophic error: cannot open source file", "install what provides curand_kernel.h: the CUDA toolkit component curand",
		},
		"plain":   {noise + "csrc/x.cpp:3:1: error: 'a' was not declared\ncsrc/x.cpp:4:1: error: 'b' was not declared\n" + noise + end, "csrc/x.cpp:3:1: error: 'a' was not declared", ""},
		"nvcc":    {noise + "x.cu(12): error: no such thing\n" + noise + end, "x.cu(12): error: no such thing", ""},
		"killed":  {noise + "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n" + end, "Killed signal terminated program cc1plus", "--jobs 1"},
		"signal":  {noise + "error: csrc/a.cu: sm_80: killed by signal 9", "csrc/a.cu: sm_80: killed by signal 9", "--jobs 1"},
		"library": {noise + "/usr/bin/ld: cannot find -laio: No such file or directory\ncollect2: error: ld returned 1 exit status\n" + end, "/usr/bin/ld: cannot find -laio", ""},
		"full":    {noise + "/tmp/a.s: No space left on device\nx.cpp:1:1: error: no\n" + noise + end, "/tmp/a.s: No space left on device", "25 GB"},
	} {
		tail := FailureLines(c.said, "")
		lines := strings.Split(tail, "\n")
		last := c.said[strings.LastIndex(c.said, "\n")+1:]
		if !strings.Contains(lines[0], c.cause) || !strings.HasSuffix(tail, last) || len(lines) > 6 {
			t.Errorf("%s:\n%s", name, tail)
		}
		if got := fault.Hint(StepFailed(CompileStep, errors.New("exit code 1"), true, tail)); (got == "") != (c.hint == "") || !strings.Contains(got, c.hint) {
			t.Errorf("%s: hint %q", name, got)
		}
	}
}

// A file with another hash than the plan is named, with both hashes, however the program says so.
func TestCauseIsAnotherHash(t *testing.T) {
	uv := "Using Python 3.11.2 environment at: /opt/env\nResolved 43 packages in 9ms\nerror: Failed to download `sympy==1.14.0`\n  cause: Hash mismatch for `sympy==1.14.0`\n\n         Expected:\n           sha256:aa\n\n         Computed:\n           sha256:bb\n"
	pip := "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package versions, please update the hashes.\n    sympy==1.14.0 from https://example.org/sympy.whl:\n        Expected sha256 aa\n             Got        bb\n"
	for _, said := range []string{uv, pip, strings.Repeat("noise\n", 40) + uv + strings.Repeat("noise\n", 40)} {
		failed := StepFailed(string(Runtime), errors.New("exit code 1"), true, FailureLines("", said))
		if fault.ExitCode(failed) != 4 || !strings.Contains(fault.Hint(failed), "sympy==1.14.0") || !strings.Contains(failed.Error(), "aa") || !strings.Contains(failed.Error(), "bb") {
			t.Errorf("exit %d, hint %q\n%s", fault.ExitCode(failed), fault.Hint(failed), failed)
		}
	}
}

// A program that is no compiler is shown by its first error and its end.
// Only the smoke test of a wheel says that the wheel does not work: an engine that was lost, or a
// full disk, says nothing about it.
func TestExitCodeOfStep(t *testing.T) {
	ended := errors.New("exit code 1")
	for _, c := range []struct {
		failed error
		want   int
	}{
		{StepFailed(SmokeStep, ended, true, FailureLines("", "undefined symbol: omp_get_num_threads")), 4},
		{StepFailed(SmokeStep, ended, true, FailureLines("", "")), 4}, // it was killed
		{StepFailed(SmokeStep, ended, true, FailureLines("", "OSError: [Errno 28] No space left on device")), 0},
		{StepFailed(SmokeStep, errors.New("the engine is gone"), false, ""), 0},
		{StepFailed(CompileStep, ended, true, ""), 0},
	} {
		if got := fault.ExitCode(c.failed); got != c.want {
			t.Errorf("%+v: exit code %d, want %d", c.failed, got, c.want)
		}
	}
}

func TestCauseOfOthers(t *testing.T) {
	got := FailureLines("KeyError: 'x'\n"+strings.Repeat("noise\n", 40)+"ninja: build stopped\n", "Traceback\nRuntimeError: Error compiling objects for extension\n")
	for _, want := range []string{"KeyError: 'x'", "ninja: build stopped", "RuntimeError: Error compiling"} {
		if !strings.Contains(got, want) {
			t.Errorf("Cause does not name %q:\n%s", want, got)
		}
	}
	if n := strings.Count(got, "\n"); n > tailLines+2 {
		t.Errorf("%d lines", n)
	}
	if got := FailureLines("", "one line"); got != "  one line" {
		t.Errorf("%q", got)
	}
	if hint := fault.Hint(StepFailed(CompileStep, errors.New("exit code 1"), true, got)); hint != "" {
		t.Errorf("hint %q", hint)
	}
}
