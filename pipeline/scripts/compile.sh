#!/bin/sh
# Compiles the source distribution of the source step into one wheel. DSBUILD_PART names a further part of
# the build (variants.py).
# Always from a clean copy at one place: a used tree keeps an old build.txt,
# and paths would end up in the bytes.
set -eu
. "$DSBUILD_TOOLS/site.sh" # where the site keeps cached objects
DSBUILD_SRC=$DSBUILD_WORK/src
rm -rf "$DSBUILD_SRC"
mkdir -p "$DSBUILD_SRC" "$DSBUILD_WORK/bin"
# Importing torch takes longer than all that is laid out here: it begins at once, and
# goes on when it is told the environment.
mkfifo "$DSBUILD_WORK/environment"
python "$DSBUILD_TOOLS/build.py" --quiet bdist_wheel --compression stored <"$DSBUILD_WORK/environment" & # it is packed anew
build=$!
trap 'kill $build 2>/dev/null || :' EXIT
exec 3>"$DSBUILD_WORK/environment"
# Root may own no files but its own in a container without root: there tar would fail at the owners in the archive.
tar -xzf "$DSBUILD_IN"/source/*.tar.gz -C "$DSBUILD_SRC" --strip-components=1 --no-same-owner
cd "$DSBUILD_SRC"
DSBUILD_SRC=$(pwd -P) # as programs that are started here see it

# What the release or the ops asked for need corrected in these sources, where it is not.
: >"$DSBUILD_OUT/patches"
if [ -n "${DSBUILD_PATCHES-}" ] && ! command -v patch >/dev/null; then
    echo "error: ops need DeepSpeed's sources corrected ($DSBUILD_PATCHES), and the program patch is not there" >&2
    exit 1
fi
for name in ${DSBUILD_PATCHES-}; do
    if patch -p1 -sf --dry-run -i "$DSBUILD_TOOLS/patches/$name.patch" >/dev/null; then
        patch -p1 -sf -i "$DSBUILD_TOOLS/patches/$name.patch"
        # What is installed with the ops, and loads them, is a link to these files
        # in a checkout, and a copy of them in a source distribution.
        if [ -d deepspeed/ops/op_builder ] && [ ! -L deepspeed/ops/op_builder ] && ! grep -q '^+++ b/deepspeed/' "$DSBUILD_TOOLS/patches/$name.patch"; then
            patch -p1 -sf -d deepspeed/ops -i "$DSBUILD_TOOLS/patches/$name.patch"
        fi
        echo "$name" >>"$DSBUILD_OUT/patches"
        echo "patch $name applied"
    else
        echo "patch $name is not for these sources, and not applied"
    fi
done

triple=${DSBUILD_CROSS:+$DSBUILD_CROSS-linux-gnu-} # of another machine than this one
DSBUILD_CC=$(command -v "${triple}gcc${DSBUILD_GCC:+-$DSBUILD_GCC}")
DSBUILD_CXX=$(command -v "${triple}g++${DSBUILD_GCC:+-$DSBUILD_GCC}")
# Objects are kept by jobs.py; ccache brings those that a site shares.
DSBUILD_CCACHE=
[ -z "${CCACHE_REMOTE_STORAGE-}${CCACHE_SECONDARY_STORAGE-}" ] || DSBUILD_CCACHE=$(command -v ccache || true)
for name in gcc g++ cc c++; do install -m 755 "$DSBUILD_TOOLS/cxx" "$DSBUILD_WORK/bin/$name"; done
install -m 755 "$DSBUILD_TOOLS/nvcc" "$DSBUILD_WORK/bin/nvcc"
PATH=$DSBUILD_WORK/bin:$PATH
# torch hands CC on to nvcc, which would look for one by itself. By name, for torch and
# distutils part a path at its spaces.
CC=gcc CXX=g++ PYTORCH_NVCC=nvcc
CCACHE_BASEDIR=$DSBUILD_SRC
export DSBUILD_SRC DSBUILD_CC DSBUILD_CXX DSBUILD_CCACHE PATH CC CXX PYTORCH_NVCC CCACHE_BASEDIR
echo >"$DSBUILD_WORK/name.cu"
DSBUILD_NVCC_NAMES=$("$CUDA_HOME/bin/nvcc" --dryrun -c "$DSBUILD_WORK/name.cu" -o /dev/null 2>&1 | sed -n 's/.*cudafe++.* --orig_src_path_name .*/yes/p' | head -n 1)
export DSBUILD_NVCC_NAMES

# Ops are linked with the library of the GPU's driver, which no toolkit has. What
# stands in for it goes on to the smoke step, whose machine may have no GPU.
echo 'int cuGetErrorName(void) { return 3; /* not initialized */ }' >"$DSBUILD_WORK/driver.c"
"$DSBUILD_CC" -shared -fPIC -s -Wl,-soname,libcuda.so.1 -o "$DSBUILD_OUT/libcuda.so.1" "$DSBUILD_WORK/driver.c"
mkdir -p "$DSBUILD_WORK/lib"
ln -sf "$DSBUILD_OUT/libcuda.so.1" "$DSBUILD_WORK/lib/libcuda.so"
LIBRARY_PATH=$DSBUILD_WORK/lib${LIBRARY_PATH:+:$LIBRARY_PATH}
# libaio.h stands in for libaio. Its functions are the extension's own: hidden, they hide no others.
install -D -m 644 "$DSBUILD_TOOLS/libaio.h" "$DSBUILD_WORK/include/libaio.h"
CPATH=$DSBUILD_WORK/include${CPATH:+:$CPATH}
"$DSBUILD_CC" -O2 -fPIC -fvisibility=hidden -c "$DSBUILD_TOOLS/libaio.c" -o "$DSBUILD_WORK/libaio.o" -I "$DSBUILD_TOOLS"
"${triple}ar" rcD "$DSBUILD_WORK/lib/libaio.a" "$DSBUILD_WORK/libaio.o"
export LIBRARY_PATH CPATH
# The libraries of torch and CUDA that are here are of this machine.
[ -z "$triple" ] || python "$DSBUILD_TOOLS/standins.py" "$DSBUILD_WORK/lib"

# Headers and libraries in packages of Python that ops ask for by name alone.
site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
IFS=:
for dir in $site ${DSBUILD_BESIDE-}; do
    [ ! -d "$dir/nvidia/nccl/include" ] || export CPATH="$dir/nvidia/nccl/include${CPATH:+:$CPATH}"
done
unset IFS
[ ! -d "$site/cutlass_library/source" ] || export CUTLASS_PATH="$site/cutlass_library/source"

[ -z "$DSBUILD_CCACHE" ] || "$DSBUILD_CCACHE" --zero-stats >/dev/null
# setup.py imports DeepSpeed itself, and would compile its modules while a core waits. Of a further part the
# wheel takes the libraries alone.
modules=
case ${DSBUILD_PART-} in
"") python "$DSBUILD_TOOLS/bytecode.py" make deepspeed 3>&- & modules=$! ;;
cu*) python "$DSBUILD_TOOLS/strip.py" packages >"$DSBUILD_OUT/packages.json" 3>&- & modules=$! ;;
esac
env -0 >&3
exec 3>&-
wait $build
[ -z "$modules" ] || wait $modules
[ -z "$DSBUILD_CCACHE" ] || "$DSBUILD_CCACHE" --show-stats | sed -n '/[Hh]its\|[Mm]isses/p'
cp dist/*.whl "$DSBUILD_OUT/"
