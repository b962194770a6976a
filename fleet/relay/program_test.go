//go:build linux

package relay

import (
	"os/exec"
	"strings"
	"testing"
)

// before stands for the part of the program that relay.py follows.
const before = `
import json, os, resource, sys, tempfile, threading, time
REQUEST = {"quiet_s": 20}
class Gone(Exception): pass
def say(message): pass
`

// The program on a node goes on where its system or a parent fails it.
func TestProgramOfANode(t *testing.T) {
	t.Parallel()
	for name, check := range map[string]string{
		"a file that grows leaks no descriptor": `
path = os.path.join(tempfile.mkdtemp(), "file")
data = os.urandom(300)
copy = Copy({"id": 1, "file": path, "size": 300, "piece": 100,
	"sums": base64.b64encode(b"".join(hashlib.sha256(data[i:i + 100]).digest() for i in (0, 100, 200)))})
begin = len(os.listdir("/proc/self/fd"))
with open(path + PART, "wb", 0) as f:
	for byte in data[:299]:
		f.write(bytes([byte]))
		copy.check_part()
		copy.read(copy.have)
assert copy.have == 2, copy.have
more = len(os.listdir("/proc/self/fd")) - begin
assert more <= 1, "%d descriptors stay open" % more
os.remove(path + PART)
assert copy.read(0) == data[:100], "it lost the file whose name is gone"
`,
		"callers come while no descriptor is free": `
BEAT = 0.1
relay = Relay()
relay.free, relay.socket = threading.Semaphore(1), listen()
relay.serve = lambda raw: raw.sendall(b"x")
caller = socket.create_connection(("localhost", relay.socket.getsockname()[1]))
old = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), old[1]))
while True:
	try:
		os.dup(0)
	except OSError:
		break
start(relay.accept)
time.sleep(0.5)
resource.setrlimit(resource.RLIMIT_NOFILE, old)
caller.settimeout(10)
assert caller.recv(1) == b"x"
`,
		"the driver stops a fetch that still connects": `
relay, silent = Relay(), listen()
relay.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
relay.client.check_hostname = False
copy = Copy({"id": 1, "file": "/nowhere", "size": 1, "piece": 1, "sums": base64.b64encode(b"x" * 32)})
tried = []
def connect():
	try:
		relay.connect(copy, {"address": "localhost", "port": silent.getsockname()[1], "name": "gpu1"})
	except OSError as e:
		tried.append(str(e))
start(connect)
time.sleep(0.5)
copy.stop("it is too slow")
for _ in range(50):
	if tried: break
	time.sleep(0.1)
assert tried, "it goes on to connect"
`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := before + strings.TrimSuffix(source, "run_relay()\n") + check
			out, err := exec.CommandContext(t.Context(), "python3", "-c", program).CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
