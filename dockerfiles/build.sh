#!/bin/sh
# Adds to the environment DSBUILD_ENV what a build needs of Python packages.
#
# usage: build.sh toolkit   the pinned tools, and the CUDA toolkit where it comes
#                           as packages (CUDA_SOURCE cuda13, cuda12 or nvcc12, TOOLKIT its
#                           version): DSBUILD_CUDA is made to be its root
#        build.sh ops       what the ops need: COMPONENTS (extras of cuda-toolkit),
#                           PACKAGES (NAME==VERSION)
#
# packages-build.txt pins each package by the sha256 of its file. CUDA_PACKAGES are
# the requirements for CUDA. Lists are joined by spaces.
set -eu
here=$(dirname "$0")
. "$here/site.sh"
packages=$here/packages-build.txt
install() { uv pip install --python "$DSBUILD_ENV" --require-hashes --only-binary :all: "$@"; }
add() { install -c "$packages" "$@"; }
# The tools, of the versions that this toolchain has of them.
add_tools() {
    sed -n 's/^\([a-z][a-z-]*\)==.*/\1/p' "$here/build.txt" | sort -u | while read -r tool; do grep "^$tool==" "$packages"; done |
        install --no-deps -r -
}

components() { printf ',%s' "$@" | sed 's/^,//'; }

nvidia=$("$DSBUILD_ENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia

# Programs are linked against libX.so, packages have libX.so.N alone.
link_names() {
    for so in "$1"/*.so.*; do [ -e "${so%%.so.*}.so" ] || ln -s "${so##*/}" "${so%%.so.*}.so"; done
}

# Brings the headers and libraries of torch's packages of CUDA 12 into its root. Where
# there is an environment beside this one, it is that one's torch.
collect_cuda12() {
    printf '%s\n' "$nvidia" "$(printf '%s' "${DSBUILD_BESIDE-}" | tr ':' '\n' | sed '/./s|$|/nvidia|')" | while read -r from; do
        [ -n "$from" ] || continue # else it would be the system's own headers
        for dir in "$from"/*/include; do [ ! -d "$dir" ] || cp -RLn "$dir/." "$DSBUILD_CUDA/include/"; done
        for so in "$from"/*/lib/lib*.so.*; do
            [ -e "$so" ] || continue
            name=${so##*/}
            ln -sf "$so" "$DSBUILD_CUDA/lib64/$name"
            ln -sf "$so" "$DSBUILD_CUDA/lib64/${name%%.so.*}.so"
        done
    done
}

case $1-$CUDA_SOURCE in
toolkit-cuda13)
    add_tools
    add $CUDA_PACKAGES
    ln -s "$nvidia/cu13" "$DSBUILD_CUDA"
    ln -s lib "$nvidia/cu13/lib64"
    link_names "$nvidia/cu13/lib"
    ;;
toolkit-cuda12)
    add_tools
    add $CUDA_PACKAGES
    mkdir -p "$DSBUILD_CUDA/bin" "$DSBUILD_CUDA/include" "$DSBUILD_CUDA/lib64"
    collect_cuda12
    # DeepSpeed asks nvcc for its version; ops without device code ask for no more.
    cat >"$DSBUILD_CUDA/bin/nvcc" <<EOF
#!/bin/sh
case "\$*" in
-V | --version) echo "Cuda compilation tools, release $TOOLKIT, V$TOOLKIT.0" ;;
*) echo "error: this stands in for nvcc $TOOLKIT, which is not there: it compiles nothing" >&2; exit 1 ;;
esac
EOF
    chmod 755 "$DSBUILD_CUDA/bin/nvcc"
    ;;
toolkit-nvcc12)
    add_tools
    mkdir -p "$DSBUILD_CUDA/bin" "$DSBUILD_CUDA/include" "$DSBUILD_CUDA/lib64"
    "$DSBUILD_ENV/bin/python" "$here/nvcc.py" "$DSBUILD_CUDA"
    # nvcc goes with headers of its own version, which are not those of torch's packages.
    install --no-deps --target "$DSBUILD_CUDA/packages" -r "$here/nvcc12.txt"
    for dir in "$DSBUILD_CUDA"/packages/nvidia/*/include; do cp -RLn "$dir/." "$DSBUILD_CUDA/include/"; done
    rm -r "$DSBUILD_CUDA/packages"
    # Of CUDA 12.8 it needs the program alone, which makes code for newer GPUs (nvcc.py).
    install --no-deps --target "$DSBUILD_CUDA/packages" -r "$here/ptxas12.txt"
    cp "$DSBUILD_CUDA/packages/nvidia/cuda_nvcc/bin/ptxas" "$DSBUILD_CUDA/bin/ptxas-12.8"
    chmod 755 "$DSBUILD_CUDA/bin/ptxas-12.8"
    rm -r "$DSBUILD_CUDA/packages"
    # glibc has functions of these names too, which throw nothing (nothrow.h).
    math=$DSBUILD_CUDA/include/crt/math_functions.h
    sed -E \
        -e 's/((sinpi|cospi)f?\((double|float) x\));/\1 DSBUILD_NOTHROW_PI;/' \
        -e 's/(rsqrtf?\((double|float) x\));/\1 DSBUILD_NOTHROW_RSQRT;/' "$math" >"$math.new"
    { cat "$here/nothrow.h" "$math.new"; } >"$math"
    rm "$math.new"
    collect_cuda12
    ;;
toolkit-*) add_tools ;;
ops-cuda13)
    [ -z "$PACKAGES" ] || add --no-deps $PACKAGES
    [ -z "$COMPONENTS" ] || add "cuda-toolkit[$(components $COMPONENTS)]==$TOOLKIT"
    link_names "$nvidia/cu13/lib"
    ;;
ops-*) [ -z "$PACKAGES" ] || add --no-deps $PACKAGES ;;
esac
