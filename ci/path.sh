#!/bin/sh
# Print PATH for the tests, which start python3 hundreds of times. A version manager's python3 is a script that takes
# three times as long to start as Python, and the Python it compiled is a third slower than a distribution's. For that
# reason the system's python3 comes first if it has the same version and is complete, else the interpreter itself. go
# stays before the system's directory, whose go may be older.
version=$(python3 -c 'import sys; print(*sys.version_info[:2])') || version=none
complete=$(/usr/bin/python3 -c 'import ensurepip, os, pip, sys, sysconfig
if os.path.exists(sysconfig.get_path("include") + "/Python.h"): print(*sys.version_info[:2])')
if [ "$complete" = "$version" ] && go=$(command -v go); then
	first=${go%/*}:/usr/bin
else
	first=$(python3 -c 'import os, sys; print(os.path.dirname(sys.executable))')
fi
echo "${first:+$first:}$PATH"
