#!/bin/sh
# Runs a command on a node: enter.sh PIDFILE COMMAND…, from the head's namespaces.
set -eu
pid=$(cat "$1")
shift
exec nsenter --target="$pid" --mount --uts --ipc --net --pid="/proc/$pid/ns/pid_for_children" --wdns="$PWD" -- "$@"
