//go:build linux

package slurm

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/ci/nodes"
)

// fakeTorch makes an environment, as root would.
const fakeTorch = `set -e
umask 022
python3 -m venv --without-pip "$1"
site=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir "$site/torch" "$site/torch-$2.dist-info" "$site/einops-0.8.0.dist-info"
printf '__version__ = "%s"\ncuda = "%s"\nhip = None\n' "$2" "$3" >"$site/torch/version.py"
printf 'from . import version\n__version__ = version.__version__\n' >"$site/torch/__init__.py"
printf 'Metadata-Version: 2.1\nName: torch\nVersion: %s\n' "$2" >"$site/torch-$2.dist-info/METADATA"
printf 'Metadata-Version: 2.1\nName: einops\nVersion: 0.8.0\n' >"$site/einops-0.8.0.dist-info/METADATA"
chown -R "$4:$4" "$1"`

// FakeTorch makes a Python environment in a folder on the node's own disk, for User
// to change: einops, and a stub that says it is the torch of ci/nodes.
func (n *Node) FakeTorch(ctx context.Context, dir string) error {
	cmd := n.Command(ctx, "sh", "-c", fakeTorch, "sh", dir, nodes.FakeTorchVersion, nodes.FakeTorchCUDA, strconv.Itoa(UserID))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: making an environment: %w: %s", n.Name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
