# Runs a container daemon in namespaces of its own until standard input ends.
# Then none of its processes, mounts, networks and folders is left.
#   sh daemon.sh FOLDER CGROUP PROGRAM ARGUMENT…
dir=$1 cgroup=$2
shift 2
alive() { # or nothing is left, and the test sees that nobody answers
	kill -0 "$1" 2>/dev/null && return
	kill -KILL "$outer" 2>/dev/null
	exit 1
}
mkfifo "$dir/gate"
unshare --net --mount --pid --fork --kill-child=KILL --mount-proc --propagation private \
	sh -c 'read -r network <"$0"; exec "$@"' "$dir/gate" "$@" >>"$dir/log" 2>&1 &
outer=$!
inner=
until [ -n "$inner" ]; do
	sleep 0.05
	alive "$outer"
	read -r inner _ <"/proc/$outer/task/$outer/children"
done
echo "$inner" >"$dir/inner"
slirp4netns --configure --mtu=1400 --disable-host-loopback --ready-fd=3 "$inner" tap0 3>"$dir/ready" >>"$dir/log" 2>&1 &
network=$!
until [ -s "$dir/ready" ]; do
	sleep 0.05
	alive "$network"
done
echo up >"$dir/gate"
while read -r order; do
	case $order in
	kill) # as a daemon that crashes: its containers go with it
		kill -KILL "$inner"
		wait "$outer"
		;;
	esac
done
kill -KILL "$inner" 2>/dev/null # changes its user, and does not end with the outer one then
kill "$network"
wait
rm -rf "$dir"
for group in /sys/fs/cgroup/"$cgroup" /sys/fs/cgroup/*/"$cgroup"; do
	[ -d "$group" ] && find "$group" -depth -type d -exec rmdir {} \;
done
exit 0
