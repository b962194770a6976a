package node

import (
	"compress/zlib"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// sources is the Python package of the programs for nodes.
//
//go:embed python/dsbuild_node/*.py
var sources embed.FS

// boot reads standard input and not a byte more than it needs: the program itself reads the rest.
// First comes what is for this node alone, then the packed modules. Python imports them from
// memory, before it looks for them on the node, and compiles each only when it is imported. boot
// compiles only with exec, because compile() creates a type for every kind of syntax. The first
// line of boot identifies dsbuild's processes on a node (processes.py).
//
// All programs run in a clean Python: if a variable or an option of the login, the inventory or a wrapper changes how
// Python compiles, warns, prints or ends, boot restarts it without them. PYTHONPATH, PYTHONHOME, PYTHONNOUSERSITE, -s and
// -E stay, because they decide what an import finds, and so does -B.
const boot = `#dsbuild
import os,sys
if sys.path and sys.path[0]in("",os.getcwd()):del sys.path[0]
f=sys.flags
v=[]if f.ignore_environment else[n for n in os.environ if n[:6]=="PYTHON"and n[6:]in"` + unclean + `".split()]
if(v or f.optimize or f.inspect or f.verbose or f.bytes_warning or getattr(f,"dev_mode",0)
or sys.warnoptions or getattr(sys,"_xoptions",0))and sys.executable and len(sys.argv)<4:
 for n in v:del os.environ[n]
 k="ignore_environment","no_user_site","no_site","dont_write_bytecode","safe_path"
 o="-"+"".join([c for c,n in zip("EsSBP",k)if getattr(f,n,0)])+"c"
 try:os.execv(sys.executable,[sys.executable,o,"` + runBoot + `"]+sys.argv[1:]+["again"])
 except OSError:pass
sys.pycache_prefix=None
import zlib
h,n=map(int,sys.argv[2].split("+"));n+=h;b=b""
while len(b)<n:
 c=os.read(0,n-len(b))
 if not c:sys.exit("program arrived incomplete; setup:, the program of python: and startup files of the login shell must not read or replace standard input")
 b+=c
M=type(sys)
class F(dict):
 get_source=dict.__getitem__
 def find_spec(f,n,p=None,t=None):
  if n in f:return type(sys.__spec__)(n,f)
 def create_module(f,s):0
 def exec_module(f,m):exec(f[m.__name__],m.__dict__)
 def find_module(f,n,p=None):
  if n in f:return f
 def load_module(f,n):
  m=sys.modules[n]=M(n);f.exec_module(m);return m
s=zlib.decompress(b[h:]).decode().split("\0")
sys.meta_path.insert(0,F(zip(s[::2],s[1::2])))
p=sys.modules["dsbuild_node"]=M("dsbuild_node");p.__path__=[]
import dsbuild_node.controller as d
d.run(b[:h])`

// runBoot is the code of -c: it runs the argument boot, which boot can then pass on.
const runBoot = "import sys;exec(sys.argv[1])"

// unclean are the variables, without PYTHON before them, that change how Python compiles, warns, prints or ends.
const unclean = "ASYNCIODEBUG COERCECLOCALE DEBUG DEVMODE DUMPREFS INSPECT IOENCODING MALLOC MALLOCSTATS NODEBUGRANGES " +
	"OPTIMIZE PROFILEIMPORTTIME PYCACHEPREFIX TRACEMALLOC UTF8 VERBOSE WARNINGS"

// Program is a module of the Python package, with all modules that it imports. It is compressed once, before it is
// sent to the first node: the result is a quarter of the size.
type Program struct {
	module string            // its function main is the program
	then   string            // the module that follows the probe
	own    map[string]string // sources of modules that are not in the package
	packed func() string
}

// NewProgram returns the program of a module in python/dsbuild_node, by its name.
func NewProgram(module string) Program { return newProgram(module, nil) }

// NewProgramOf returns the program of a source that is not in the package.
func NewProgramOf(source string) Program {
	return newProgram("program", map[string]string{"program": source})
}

// NewFollowUp returns the probe, with a program that runs after it: the function follow of its module,
// which takes the facts.
func NewFollowUp(p Program) Program {
	all := newProgram("probe", p.own, p.module)
	all.then = p.module
	return all
}

// newProgram returns the program of a module. It packs the module, more modules, and all that they import: names and
// sources, with a NUL after each.
func newProgram(module string, own map[string]string, more ...string) Program {
	return Program{module: module, own: own, packed: sync.OnceValue(func() string {
		all := map[string]string{}
		for waiting := append(more, module, "controller"); len(waiting) > 0; waiting = waiting[1:] {
			name := waiting[0]
			if all[name] != "" {
				continue
			}
			if all[name] = own[name]; all[name] == "" {
				source, err := sources.ReadFile("python/dsbuild_node/" + name + ".py")
				if err != nil {
					panic(err) // a test reads all names
				}
				all[name] = string(source)
			}
			for _, m := range imported.FindAllStringSubmatch(all[name], -1) {
				waiting = append(waiting, m[1])
			}
		}
		var b strings.Builder
		z := zlib.NewWriter(&b) // BestCompression takes three times as long, in each run of dsbuild, for a hundredth less
		for _, name := range slices.Sorted(maps.Keys(all)) {
			fmt.Fprintf(z, "dsbuild_node.%s\x00%s\x00", name, all[name]) //nolint:errcheck // memory takes all that is written
		}
		z.Close() //nolint:errcheck // memory takes all that is written
		return b.String()
	})}
}

// imported matches the name of a module in an import.
var imported = regexp.MustCompile(`\bdsbuild_node\.(\w+)`)

// withInput returns the input for one node followed by the program, and the sizes of both as the
// argument of boot.
func (p Program) withInput(mark string, request []byte) (sent, sizes string) {
	told := remote.EndShell + string(quoteJSON(map[string]any{
		"mark": mark, "program": p.module, "request": json.RawMessage(request),
	}))
	packed := p.packed()
	return told + packed, fmt.Sprintf("%d+%d", len(told), len(packed))
}

// quoteJSON encodes what can be encoded.
func quoteJSON(v any) []byte {
	text, _ := json.Marshal(v)
	return text
}

// MergeFields adds fields to a request, which is an object or nil.
func MergeFields(request any, fields map[string]any) (map[string]any, error) {
	all := map[string]json.RawMessage{}
	text, err := json.Marshal(request)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	for name, value := range all {
		fields[name] = value
	}
	return fields, err
}
