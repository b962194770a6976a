#!/bin/sh
# Brings into a toolchain's image what wheels for another machine need: the distribution's
# cross compiler, and for the smoke test a Python of
# that machine with torch, which qemu-user runs.
# CROSS: aarch64, or nothing; GCC: as in compilers.sh; PYTHON: X.Y
set -eu
[ -n "${CROSS-}" ] || exit 0
here=$(dirname "$0")
dpkg --add-architecture arm64 # Debian's name for it
set -- "g++${GCC:+-$GCC}-aarch64-linux-gnu" qemu-user-static "libpython$PYTHON:arm64" libstdc++6:arm64 libgomp1:arm64
sh "$here/install.sh" "$@"

# Debian has Python's program for one machine at a time, but its library for several.
root=/opt/aarch64
export CC="aarch64-linux-gnu-gcc${GCC:+-$GCC}"
mkdir -p "$root"
printf 'int Py_BytesMain(int, char **);\nint main(int count, char **words) { return Py_BytesMain(count, words); }\n' |
    "$CC" -o "$root/python" -x c - -x none "/usr/lib/aarch64-linux-gnu/libpython$PYTHON.so.1.0"
cat >"$root/python3" <<EOF
#!/bin/sh
export QEMU_LD_PREFIX=$root QEMU_CPU=cortex-a72 PYTHONHOME=/usr PYTHONPATH="\${PYTHONPATH:+\$PYTHONPATH:}$root/site" LD_LIBRARY_PATH=$root/nvidia
exec qemu-aarch64-static $root/python "\$@"
EOF
chmod +x "$root/python3"
. "$here/site.sh"
sh "$here/emulated.sh" "$root" "$here/packages-aarch64.txt" "$PYTHON"
