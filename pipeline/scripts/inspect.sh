#!/bin/sh
# Tells what a build would find here: the machine, its C library and release,
# every Python with the parts that a build needs, compilers, the CUDA toolkit.
# One fact a line, its fields separated by tabs, "end" last (pipeline.ParseGround).
# Changes nothing; needs a POSIX shell and what is in every base.
set -u
LC_ALL=C PYTHONDONTWRITEBYTECODE=1
export LC_ALL PYTHONDONTWRITEBYTECODE
tab=$(printf '\t')
newline='
'

# fact KEY FIELD...: no field may hold what separates them.
fact() {
    line=$1
    shift
    for field do
        case $field in *[![:print:]]*) field=$(printf '%s' "$field" | tr -d '\000-\037\177') ;; esac
        [ ${#field} -le 300 ] || field=$(printf '%s' "$field" | cut -c 1-300)
        line=$line$tab$field
    done
    printf '%s\n' "$line"
}

fact look 1
fact machine "$(uname -m)"

libc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed -n 's/^glibc //p')
# Its own ldd names it in the last word of the first line; musl's does not.
[ -n "$libc" ] || libc=$(ldd --version 2>/dev/null | sed -n '1s/^ldd .* \([0-9][0-9.]*\)$/\1/p')
[ -z "$libc" ] || fact glibc "$libc"

# In a shell of its own: the file sets what it likes.
[ ! -r /etc/os-release ] || (
    . /etc/os-release
    fact os "${ID:-}" "${VERSION_CODENAME:-}" "${PRETTY_NAME:-}"
) 2>/dev/null

# A shim of pyenv takes a fifth of a second, and most end with an error: in the place of
# their directory stand those of the versions that they would start.
path=$(
    IFS=:
    for dir in $PATH; do
        home=${dir%/shims}
        if [ "$home" != "$dir" ] && [ -d "$home/versions" ] && active=$(PYENV_ROOT=$home pyenv version-name 2>/dev/null); then
            for version in $active; do printf '%s:' "$home/versions/$version/bin"; done
        else
            printf '%s:' "$dir"
        fi
    done
    # Those that uv has installed come last.
    for dir in "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-${HOME-}/.local/share}/uv/python}"/cpython-*/bin; do
        [ ! -d "$dir" ] || printf '%s:' "$dir"
    done
)

# each PATTERN...: the programs of path whose names match, in its order, those of one
# directory once. Makefiles and scripts of others stumble over a directory with odd characters.
each() (
    IFS=: real=
    for dir in $path; do
        case $dir in *[!A-Za-z0-9_./+@,~-]*) continue ;; /*) ;; *) continue ;; esac
        place=$(cd -P "$dir" 2>/dev/null && pwd) || continue
        case ":$real:" in *":$place:"*) continue ;; esac
        real=$real:$place
        for pattern do
            IFS=
            for file in "$dir"/$pattern; do
                [ -f "$file" ] && [ -x "$file" ] && printf '%s\n' "$file"
            done
        done
    done
)

ask_python='
import os, sys, sysconfig
if sys.version_info.releaselevel != "final":
    sys.exit(1)
parts = []
for part in ("venv", "ensurepip", "pip"):
    try:
        __import__(part)
        parts.append(part)
    except Exception:
        pass
if os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    parts.append("Python.h")
print("%d.%d.%d" % sys.version_info[:3], sys.executable, ",".join(parts) or "-", sep="\t")
'
# A Python before its release (3.11 of Ubuntu 22.04 is a candidate) counts for none: torch
# needs what came later. All are asked at once: version managers have shims of theirs, which may take long and
# end with an error. Their answers come in any order, each behind its number.
pythons=$newline$(
    { each python3; each 'python3.[0-9]' 'python3.[0-9][0-9]'; } | {
        n=0
        while read -r file; do
            n=$((n + 1))
            { told=$("$file" -I -c "$ask_python" 2>/dev/null </dev/null) && printf '%s\n' "$n$tab$told"; } &
        done
        wait
        printf '%s\n' "$n"
    }
)
seen= n=0
while [ "$n" -lt "${pythons##*"$newline"}" ]; do
    n=$((n + 1))
    told=${pythons#*"$newline$n$tab"}
    [ "$told" != "$pythons" ] || continue
    told=${told%%"$newline"*}
    version=${told%%"$tab"*}
    case " $seen " in *" ${version%.*} "*) continue ;; esac
    seen="$seen ${version%.*}"
    rest=${told#*"$tab"}
    fact python "$version" "${rest%%"$tab"*}" "${rest#*"$tab"}"
done

# A compiler counts with its other half; headers say whether it can use the C library:
# they are looked for and not read, which takes longer, where it is not too old for that.
ask_headers='
#ifndef __has_include
#include <cmath>
#include <unistd.h>
#elif !__has_include(<cmath>) || !__has_include(<unistd.h>)
#error
#endif
'
seen=
{ each gcc; each 'gcc-[0-9]' 'gcc-[0-9][0-9]'; } | while read -r gcc; do
    suffix=${gcc##*/gcc}
    case " $seen " in *" =$suffix "*) continue ;; esac
    seen="$seen =$suffix"
    version=$("$gcc" -dumpfullversion -dumpversion 2>/dev/null </dev/null) || continue
    gxx=$(command -v "g++$suffix" 2>/dev/null) || gxx=-
    headers=-
    [ "$gxx" = - ] || ! printf '%s' "$ask_headers" | "$gxx" -x c++ -E - >/dev/null 2>&1 || headers=headers
    fact gcc "$version" "$gcc" "$gxx" "$headers"
done

nvcc=$(command -v nvcc 2>/dev/null) && nvcc=$(readlink -f "$nvcc" 2>/dev/null) && nvcc=${nvcc%/bin/*}
for home in "${CUDA_HOME-}" "${CUDA_PATH-}" "${nvcc-}" /usr/local/cuda; do
    case $home in /*) ;; *) continue ;; esac
    version=$("$home/bin/nvcc" -V 2>/dev/null </dev/null | sed -n 's/^.*release \([0-9][0-9]*\.[0-9][0-9]*\).*$/\1/p' | head -n 1)
    if [ -n "$version" ]; then
        fact cuda "$version" "$home"
        break
    fi
done

for tool in strip tar patch ccache uv apt-get; do
    command -v "$tool" >/dev/null 2>&1 && fact tool "$tool"
done
fact end
