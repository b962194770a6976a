//go:build full && linux

package deploy_test

import "testing"

// TestFullEnvMessy deploys to more messy nodes.
func TestFullEnvMessy(t *testing.T) {
	const checkout = `mkdir -p $H/src/deepspeed; echo 1 >$H/src/deepspeed/__init__.py; `
	const noRecord = "installed DeepSpeed has no RECORD"
	tryMessy(t, map[string]messyNode{
		"a program that prints and moves":        {python: "echo Activating; echo warning >&2; cd /\nexec $PY \"$@\""},
		"DeepSpeed in a base":                    {setup: `cp -a $E $H/base; PY=$H/base/bin/python; old; echo $H/base/lib/python3*/site-packages >$S/base.pth`},
		"a .pth that puts a DeepSpeed first":     {setup: checkout + `echo "import sys; sys.path.insert(0, '$H/src')" >$S/aaa.pth`, why: "import deepspeed finds", hint: "from sys.path"},
		".dsbuild is a link to nothing":          {setup: `ln -s /nowhere $S/.dsbuild`, why: ".dsbuild is a link", hint: "remove the link"},
		".dsbuild may be changed by all":         {setup: `mkdir -m 1777 $S/.dsbuild`},
		"the journal is a link":                  {setup: `mkdir $S/.dsbuild; echo mine >$H/file; ln -s $H/file $S/.dsbuild/journal.jsonl`, why: "journal.jsonl is not a writable regular file", hint: "move the existing file aside"},
		"notes and inbox of another form":        {setup: `mkdir -p $S/.dsbuild/installed.json/x; echo >$S/.dsbuild/inbox`, why: "installed.json is not a writable regular file", hint: "move the existing file aside"},
		"byte code that is a folder":             {setup: `mkdir -p $S/.dsbuild/bytecode.xz/x`, why: "bytecode.xz is not a writable regular file", hint: "move the existing file aside"},
		"the note is a pipe":                     {setup: `mkdir $S/.dsbuild; mkfifo $S/.dsbuild/change.json`, why: "cannot read", hint: "rerun"},
		"previous is a link":                     {setup: `mkdir -p $S/.dsbuild $H/mine; echo mine >$H/mine/file; ln -s $H/mine $S/.dsbuild/previous`},
		"a noisy login":                          {login: "export LD_PRELOAD=/missing.so CDPATH=/:/tmp TMPDIR=/missing BASH_ENV=/etc/profile PIP_TARGET=/missing PIP_USER=1 PIP_REQUIRE_VIRTUALENV=1 LC_ALL=xx_YY POSIXLY_CORRECT=1 PYTHONSTARTUP=/missing"},
		"a strict login":                         {login: "set -euo pipefail; IFS=/; trap 'echo bye' EXIT; ulimit -n 16; exec 2>&-"},
		"no HOME":                                {login: "unset HOME; cd /"},
		"umask 077":                              {login: "umask 077"},
		"umask 000":                              {login: "umask 000"},
		"umask 777":                              {login: "umask 777"},
		"modules in HOME":                        {setup: `for m in deepspeed torch json zipfile hashlib dsbuild_node pip; do echo 'raise SystemExit(3)' >$H/$m.py; done`},
		"settings of pip":                        {setup: `mkdir -p $H/.config/pip; printf '[global]\ntarget=/missing\nuser=true\nrequire-hashes=true\nno-binary=:all:\n' | tee $H/.config/pip/pip.conf >$E/pip.conf`, login: "export PIP_PREFIX=/missing PIP_CONSTRAINT=/missing"},
		"a .pth that prints":                     {setup: `echo "import sys; print('hello'); sys.stdout.flush()" >$S/aaa.pth`},
		"folders of a group":                     {setup: `chmod -R g+w $E; find $E -type d -exec chmod g+s {} +`},
		"names that differ in case":              {setup: `mkdir $S/DeepSpeed; echo >$S/DeepSpeed/__init__.py; echo >$E/bin/DS_REPORT`},
		"RECORD with CRLF":                       {setup: `old; sed -i 's/$/\r/' $S/deepspeed-*.dist-info/RECORD`},
		"RECORD leads far out":                   {setup: `old; echo mine >$H/mine; echo "../../../../../../../../../../../../..$H/mine,," >>$(echo $S/deepspeed-*.dist-info/RECORD)`},
		"RECORD is empty":                        {setup: `old; f=$(echo $S/deepspeed-*.dist-info/RECORD); : >$f`, why: noRecord, hint: "pip uninstall deepspeed"},
		"two dist-infos":                         {setup: `old; cp -a $S/deepspeed-*.dist-info $S/deepspeed-0.17.0.dist-info`},
		"dist-info of another case":              {setup: `old; mv $S/deepspeed-*.dist-info $S/DeepSpeed-0.19.7.dist-info`},
		"dist-info is a link":                    {setup: `old; mv $S/deepspeed-*.dist-info $H/info; ln -s $H/info $S/deepspeed-0.19.7.dist-info`},
		"an egg-info":                            {setup: `mkdir $S/deepspeed; echo 1 >$S/deepspeed/__init__.py; d=$S/deepspeed-0.9.0-py3.11.egg-info; mkdir $d; printf 'Name: deepspeed\nVersion: 0.9.0\n' >$d/PKG-INFO`, why: noRecord, hint: "pip uninstall deepspeed"},
		"an egg link":                            {setup: checkout + `echo $H/src >$S/easy-install.pth; printf "$H/src\n." >$S/deepspeed.egg-link`, why: noRecord, hint: "pip uninstall deepspeed"},
		"an editable installation":               {setup: checkout + `echo $H/src >$S/__editable__.deepspeed.pth; d=$S/deepspeed-0.19.0.dist-info; mkdir $d; printf 'Name: deepspeed\nVersion: 0.19.0\n' >$d/METADATA; echo __editable__.deepspeed.pth,, >$d/RECORD`},
		"DeepSpeed is a link to a checkout":      {setup: checkout + `ln -s $H/src/deepspeed $S/deepspeed`},
		"a module deepspeed.py":                  {setup: `echo 'raise SystemExit(4)' >$S/deepspeed.py`},
		"what a pip that was cut off left":       {setup: `old; mv $S/deepspeed $S/~eepspeed; mv $S/deepspeed-*.dist-info $S/~eepspeed-0.19.7.dist-info`, why: "ds_report belongs to no package", hint: "move them aside"},
		"a pipe in place of a module":            {setup: `old; rm $S/deepspeed/__init__.py; mkfifo $S/deepspeed/__init__.py`},
		"files that cannot be written":           {setup: `old; chmod -R a-w $S/deepspeed $E/bin/ds_report`},
		"files with hard links":                  {setup: `old; cp -al $S/deepspeed $H/farm`},
		"a folder named as the command":          {setup: `mkdir $E/bin/ds_report`, why: "ds_report belongs to no package", hint: "move them aside"},
		"a command that is a link to nothing":    {setup: `ln -s /nowhere $E/bin/ds_report`, why: "ds_report belongs to no package", hint: "move them aside"},
		"a command that is a link out":           {setup: `old; mv $E/bin/ds_report $H/ds_report; ln -s $H/ds_report $E/bin/ds_report`},
		"commands of the path before the move":   {setup: `old; sed -i '1s|.*|#!/old/venv/bin/python|' $E/bin/ds_report`},
		"loops of links":                         {setup: `ln -s loop $E/bin/loop; ln -s . $S/self; ln -s loop2 $S/loop2`},
		"a space, a quote and 200 letters in PY": {setup: `n="$E/a 'b/$(printf 'x%.0s' $(seq 200))"; mkdir -p "$n"; cp -a $E/bin $E/lib $E/pyvenv.cfg "$n"`, python: `exec "$E/a 'b/$(printf 'x%.0s' $(seq 200))/bin/python" "$@"`},
	})
}
