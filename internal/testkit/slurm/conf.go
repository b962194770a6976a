//go:build linux

package slurm

import (
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

//go:embed slurm.conf.tmpl scripts
var files embed.FS

// headAddress is the address of the login node. It exists only in the cluster's network.
const headAddress = "10.77.0.1"

// fillFolder writes the cluster's folder.
func (c *Cluster) fillFolder() error {
	for _, dir := range []string{"etc", "env", "home", "log", "nodes", "run", "run/munge", "scripts", "state"} {
		if err := os.Mkdir(filepath.Join(c.Dir, dir), 0o755); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes {
		if err := os.Mkdir(n.disk(), 0o755); err != nil {
			return err
		}
	}
	return errors.Join(os.Chown(c.Home, UserID, UserID), c.writeMungeKey(), c.writeScripts(), c.writeAccounts(), c.writeHosts(), c.writeSlurmConf())
}

// writeMungeKey gives the account of munged its folder and a key.
func (c *Cluster) writeMungeKey() error {
	u, err := user.Lookup("munge")
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return err
	}
	key := make([]byte, 128)
	rand.Read(key) //nolint:errcheck // never fails
	dir := filepath.Join(c.Dir, "run", "munge")
	if err := os.WriteFile(filepath.Join(dir, "key"), key, 0o400); err != nil {
		return err
	}
	return errors.Join(os.Chown(filepath.Join(dir, "key"), uid, gid), os.Chown(dir, uid, gid))
}

func (c *Cluster) writeScripts() error {
	scripts, err := fs.Glob(files, "scripts/*.sh")
	if err != nil {
		return err
	}
	for _, name := range scripts {
		text, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(c.Dir, name), text, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) etcPath(name string) string { return filepath.Join(c.Dir, "etc", name) }

// writeAccounts writes this machine's accounts and User. Home is also root's home.
func (c *Cluster) writeAccounts() error {
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return err
	}
	group, err := os.ReadFile("/etc/group")
	if err != nil {
		return err
	}
	var b strings.Builder
	for line := range strings.Lines(string(passwd)) {
		if f := strings.Split(line, ":"); len(f) == 7 && f[0] == "root" {
			f[5] = c.Home
			line = strings.Join(f, ":")
		}
		b.WriteString(line)
	}
	fmt.Fprintf(&b, "%s:x:%d:%d::%s:/bin/bash\n", User, UserID, UserID, c.Home)
	return errors.Join(
		os.WriteFile(c.etcPath("passwd"), []byte(b.String()), 0o644),
		os.WriteFile(c.etcPath("group"), fmt.Appendf(group, "%s:x:%d:\n", User, UserID), 0o644))
}

// writeHosts writes the cluster's hosts file. There is no name server, so a name that is not in
// the file is unknown at once.
func (c *Cluster) writeHosts() error {
	var b strings.Builder
	fmt.Fprintf(&b, "127.0.0.1 localhost\n%s head\n", headAddress)
	for _, n := range c.Nodes {
		fmt.Fprintf(&b, "%s %s\n", n.Address, n.Name)
	}
	return errors.Join(
		os.WriteFile(c.etcPath("hosts"), []byte(b.String()), 0o644),
		os.WriteFile(c.etcPath("nsswitch.conf"), []byte("passwd: files\ngroup: files\nhosts: files\n"), 0o644))
}

func (c *Cluster) writeSlurmConf() error {
	t, err := template.ParseFS(files, "slurm.conf.tmpl")
	if err != nil {
		return err
	}
	var b strings.Builder
	err = t.Execute(&b, struct {
		Dir, Head  string
		Nodes      []*Node
		Partitions []string
		Each       Options
	}{c.Dir, headAddress, c.Nodes, c.Partitions, c.opt})
	if err != nil {
		return err
	}
	// Every node looks for this file beside slurm.conf, and for the devices in its own /dev.
	var gres string
	if n := c.opt.GPUs; n > 0 {
		gres = fmt.Sprintf("AutoDetect=off\nName=gpu File=/dev/nvidia[0-%d]\n", n-1)
	}
	var topology strings.Builder
	if leaf := c.opt.Leaf; leaf > 0 {
		number := 0
		for nodes := range slices.Chunk(c.Nodes, leaf) {
			number++
			var names []string
			for _, n := range nodes {
				names = append(names, n.Name)
			}
			fmt.Fprintf(&topology, "SwitchName=leaf%d Nodes=%s\n", number, strings.Join(names, ","))
		}
		fmt.Fprintf(&topology, "SwitchName=spine Switches=leaf[1-%d]\n", number)
	}
	// A node has no control groups, and must not search for their version.
	const cgroup = "CgroupPlugin=cgroup/v1\n"
	return errors.Join(
		os.WriteFile(c.etcPath("cgroup.conf"), []byte(cgroup), 0o644),
		os.WriteFile(c.etcPath("slurm.conf"), []byte(b.String()), 0o644),
		os.WriteFile(c.etcPath("topology.conf"), []byte(topology.String()), 0o644),
		os.WriteFile(c.etcPath("gres.conf"), []byte(gres), 0o644))
}
