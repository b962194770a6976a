//go:build linux

package relay

import (
	"os/exec"
	"testing"
)

// before imports the relay.
const before = `
import resource, sys, tempfile
sys.path.insert(0, "../node/python")
sys.dont_write_bytecode = True
from dsbuild_node import relay
from dsbuild_node.relay import *
REQUEST["quiet_s"] = 20
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
relay.BEAT = 0.1
parent = Relay()
parent.free, parent.socket = threading.Semaphore(1), listen()
parent.serve = lambda raw: raw.sendall(b"x")
caller = socket.create_connection(("localhost", parent.socket.getsockname()[1]))
old = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), old[1]))
while True:
	try:
		os.dup(0)
	except OSError:
		break
start(parent.accept)
time.sleep(0.5)
resource.setrlimit(resource.RLIMIT_NOFILE, old)
caller.settimeout(60)
assert caller.recv(1) == b"x"
`,
		"the controller stops a fetch that still connects": `
child, silent = Relay(), listen()
child.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
child.client.check_hostname = False
copy = Copy({"id": 1, "file": "/nowhere", "size": 1, "piece": 1, "sums": base64.b64encode(b"x" * 32)})
tried = []
def connect():
	try:
		child.connect(copy, {"address": "localhost", "port": silent.getsockname()[1], "name": "gpu1"})
	except OSError as e:
		tried.append(str(e))
start(connect)
time.sleep(0.5)
copy.stop("it is too slow")
for _ in range(600):
	if tried: break
	time.sleep(0.1)
assert tried, "it goes on to connect"
`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := before + check
			out, err := exec.CommandContext(t.Context(), "python3", "-c", program).CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
