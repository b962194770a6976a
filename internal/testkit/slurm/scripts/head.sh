#!/bin/bash
# The first process in the namespaces of a cluster (mount, process, network, host name, IPC). It
# makes them a login node with the controller. The whole cluster ends with this process, which
# ends when its standard input does.
#
# DIR is the folder of the cluster, HEAD the address of this node, PYENV the Python environment
# or empty. The lock on file descriptor 3 shows that the cluster lives; a line goes to 4 when
# nodes can be connected.
set -eu
umask 022
: "${DIR:?}" "${HEAD:?}" "${PYENV?}"
mount --make-rprivate /
mount -t proc proc /proc
hostname head
for file in hosts nsswitch.conf passwd group; do
	mount --bind "$DIR/etc/$file" "/etc/$file"
done
if [ -n "$PYENV" ]; then
	mount --bind "$PYENV" "$DIR/env"
	mount -o remount,bind,ro "$DIR/env"
fi

ip link set lo up
ip link add br0 type bridge
ip address add "$HEAD/16" dev br0
ip link set br0 up
echo ready >&4
exec 4>&-

cd /
setpriv --reuid=munge --regid=munge --clear-groups \
	munged --foreground --key-file="$DIR/run/munge/key" --socket="$DIR/run/munge/socket" \
	--pid-file="$DIR/run/munge/pid" --seed-file="$DIR/run/munge/seed" --log-file="$DIR/run/munge/log" \
	</dev/null >"$DIR/log/munged.log" 2>&1 &
slurmctld -D </dev/null >"$DIR/log/slurmctld.log" 2>&1 &

# Nobody writes here: the read ends when the program at the other end does.
read -r _ || true
