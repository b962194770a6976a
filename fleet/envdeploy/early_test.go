package envdeploy_test

import (
	"os/exec"
	"strings"
	"testing"

	pythons "github.com/dsbuild/dsbuild/internal/testkit/python"
)

// earlyHead imports an EarlyInstaller. Its said collects the steps in their order.
const earlyHead = `
import sys, time
sys.path.insert(0, "../node/python")
sys.dont_write_bytecode = True
from dsbuild_node.controller import REQUEST
REQUEST.update({"folder": "/nowhere", "name": "e"})
from dsbuild_node.known_files import *
class Controller:
    def check(self): pass
said = []
def install(files, watch):
    said.append("install " + "+".join(files))
    return {"entry of " + f for f in files}
def read(entries, watch):
    said.append("read %d" % len(entries))
`

// The thread that installs large wheels does not wait for the one that reads their files; whatever
// fails in either fails the run, and both end if the controller is gone.
func TestEarlyInstaller(t *testing.T) {
	t.Parallel()
	interpreter, err := pythons.Find(t.Context(), "3.11")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ program, want string }{
		"all that waits is one batch": {`
go_on = threading.Event()
def install(files, watch):
    said.append("install " + "+".join(files))
    go_on.wait()
    return set(files)
e = EarlyInstaller(install, read)
e.files.put("torch")
while not said: time.sleep(0.001)
e.files.put("cublas")
e.files.put("nccl")
go_on.set()
e.finish_installing(Controller())
e.finish_reading(Controller())
print(sorted(said))
`, "['install cublas+nccl', 'install torch', 'read 1', 'read 2']"},
		"the next wheel is installed while files are read": {`
reading, second = threading.Event(), threading.Event()
def install(files, watch):
    if files == ["second"]: second.set()
    return set(files)
def read(entries, watch):
    if entries == {"first"}:
        reading.set()
        said.append(second.wait(60))
e = EarlyInstaller(install, read)
e.files.put("first")
reading.wait()
e.files.put("second")
e.finish_installing(Controller())
e.finish_reading(Controller())
print(said)
`, "[True]"},
		"installing ends before reading does": {`
go_on = threading.Event()
def read(entries, watch):
    go_on.wait()
    said.append("read")
e = EarlyInstaller(install, read)
e.files.put("torch")
e.finish_installing(Controller())
print(said)
go_on.set()
e.finish_reading(Controller())
print(said)
`, "['install torch']\n['install torch', 'read']"},
		"an installer that fails": {`
def install(files, watch): raise ValueError("no room")
e = EarlyInstaller(install, read)
e.files.put("torch")
try: e.finish_installing(Controller())
except ValueError as failure: print(failure, e.is_alive() and "alive", said)
`, "no room"},
		"an error of a later order": {`
def install(files, watch): raise ValueError("no room")
e = EarlyInstaller(install, read)
e.files.put("torch")
e.join()
try: e.raise_failure()
except ValueError as failure: print(failure)
`, "no room"},
		"a file that cannot be read": {`
def read(entries, watch): raise OSError("input/output error")
e = EarlyInstaller(install, read)
e.files.put("torch")
try:
    e.finish_installing(Controller())
    e.finish_reading(Controller())
except OSError as failure: print(failure)
`, "input/output error"},
		"no wheel at all": {`
e = EarlyInstaller(install, read)
e.finish_installing(Controller())
e.finish_reading(Controller())
print(said, e.is_alive())
`, "[] False"},
		"the controller goes away meanwhile": {`
class Away:
    def check(self): raise Gone()
def read(entries, watch):
    while True:
        watch.check()
        time.sleep(0.001)
e = EarlyInstaller(install, read)
e.files.put("torch")
try: e.finish_reading(Away())
except Gone: print("gone")
e.stop()
print(e.is_alive(), isinstance(e.failed, Gone))
`, "gone\nFalse True"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := exec.CommandContext(t.Context(), interpreter, "-c", earlyHead+c.program).CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || !strings.HasPrefix(got, c.want) {
				t.Errorf("%v\n%s\nwant\n%s", err, got, c.want)
			}
		})
	}
}
