#!/bin/bash
# Makes the namespaces in which it was started (mount, network, host name, IPC) a node, and
# starts the node. Its processes have their own namespace, a child of the namespace of the head:
# process 1 here is the first process of the head.
#
# The node has the system folders of this machine, and the folder of the cluster, DIR, which all
# nodes share. Other files that it writes are its own and end with it: its disk is in memory,
# with the size DISK. NAME and ADDRESS are those of the node, PYENV is the Python environment or
# empty, GPUS the number of GPUs that it claims to have. It writes a line to file descriptor 3
# when slurmd is about to start.
set -eu
umask 022
: "${DIR:?}" "${NAME:?}" "${ADDRESS:?}" "${DISK:?}" "${GPUS:?}" "${PYENV?}"
disk=$DIR/nodes/$NAME
root=$disk/root

network() {
	hostname "$NAME"
	ip link set lo up
	# A node that was switched off a moment ago may still have its network link.
	nsenter --target=1 --net ip link delete "$NAME" 2>/dev/null || true
	ip link add eth0 type veth peer name "$NAME" netns 1
	ip address add "$ADDRESS/16" dev eth0
	ip link set eth0 up
	nsenter --target=1 --net ip link set "$NAME" master br0 up
}

# overlay SOURCE TARGET: a copy of a folder, whose changes go to the disk.
overlay() {
	local changes=$disk/changes$2
	mkdir -p "$changes/upper" "$changes/work" "$root$2"
	mount -t overlay -o "lowerdir=$1,upperdir=$changes/upper,workdir=$changes/work" "$NAME" "$root$2"
}

# The root itself is a folder of the disk. It has only the system of this machine: a file is on
# all nodes if it is in DIR, or was brought there.
system() {
	mount -t tmpfs -o "size=$DISK,mode=755" "$NAME" "$disk"
	mkdir "$root"
	mount --bind "$root" "$root"
	local folder
	for folder in /*; do
		case $folder in
		/bin | /sbin | /lib* | /usr | /etc | /var)
			if [ -L "$folder" ]; then
				cp -P "$folder" "$root"
			else
				overlay "$folder" "$folder"
			fi
			;;
		esac
	done
	mkdir "$root"/{dev,home,opt,proc,root,run,sys,tmp}
	chmod 700 "$root/root"
	chmod 1777 "$root/tmp"
	cp "$DIR"/etc/{hosts,nsswitch.conf,passwd,group} "$root/etc"
	mkdir -p "$root/var/spool/slurmd"
}

devices() {
	mount -t tmpfs -o mode=755 dev "$root/dev"
	local device
	for device in null zero full random urandom tty; do
		touch "$root/dev/$device"
		mount --bind "/dev/$device" "$root/dev/$device"
	done
	mkdir "$root"/dev/{pts,shm}
	mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$root/dev/pts"
	mount -t tmpfs -o "size=$DISK,mode=1777" shm "$root/dev/shm"
	ln -s pts/ptmx "$root/dev/ptmx"
	ln -s /proc/self/fd "$root/dev/fd"
	ln -s fd/0 "$root/dev/stdin"
	ln -s fd/1 "$root/dev/stdout"
	ln -s fd/2 "$root/dev/stderr"
	for ((device = 0; device < GPUS; device++)); do
		mknod -m 666 "$root/dev/nvidia$device" c 1 3 # it is /dev/null
	done
	mount -t sysfs sysfs "$root/sys"
}

shared() {
	mkdir -p "$root$DIR"
	mount --bind "$DIR" "$root$DIR"
	if [ -n "$PYENV" ]; then
		overlay "$PYENV" "$DIR/env"
	fi
}

network
system
devices
shared
echo $$ >"$DIR/run/$NAME.pid"
exec unshare --pid --fork --kill-child bash "$DIR/scripts/init.sh" "$root"
