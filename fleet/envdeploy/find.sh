# Looks for a Python that can run dsbuild's programs, on a node that may have none. Changes nothing.
# The script of package private comes before it. Arguments: the folder of environments, or "" for the user's own; then the programs of the Pythons
# that may have come along, below pythons.
folder=${1:-$HOME/.local/share} home=${1:-$HOME/.local/share}/dsbuild/env
shift
say() { printf '\n@@dsbuild-python %s %s\n' "$1" "$2"; }
usable() { command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 8))' </dev/null >/dev/null 2>&1; }

say home "$home"
danger=$(unsafe "$folder" dsbuild dsbuild/env dsbuild/env/.dsbuild dsbuild/env/.dsbuild/pythons) ||
	danger="cannot check who can change $folder"
[ -z "$danger" ] || { say unsafe "$danger" && exit 0; }
for program; do
	[ -x "$home/.dsbuild/pythons/$program" ] && say there "$program"
done
for program; do
	set -- "$@" "$home/.dsbuild/pythons/$program" && shift
done
for program in "$@" python3 /usr/libexec/platform-python "$home"/.dsbuild/pythons/[0-9a-f]*/tree/*/bin/python3.*; do
	usable "$program" && say use "$program" && break
done
place=$home
while [ -n "$place" ] && [ ! -d "$place" ]; do place=${place%/*}; done
[ -w "${place:-/}" ] && say writable yes
set -- $(df -Pk "${place:-/}" 2>/dev/null | tail -n 1)
say free "$4"
exit 0
