# Gathers the facts about a node, most of them by the node's Python. If Python does not
# answer, the shell itself finds as many as it can. Every program that it starts costs
# time, so it starts few. Writes nothing.
# Arguments: mark of a message, interpreter, the code that runs the next argument, how Python reads its program from
# standard input, the program's size.
mark=$1 py=$2 run=$3 boot=$4 size=$5

say() { printf '\n%s%s %s\n' "$mark" "$1" "$2"; }

if [ -n "$APPTAINER_CONTAINER" ]; then say container apptainer
elif [ -n "$SINGULARITY_CONTAINER" ]; then say container singularity
elif [ -e /.lock ] && [ -e /etc/rc ]; then say container enroot
elif [ -e /run/.containerenv ]; then say container podman
elif [ -e /.dockerenv ]; then say container docker
elif [ -e /var/run/secrets/kubernetes.io ]; then say container kubernetes
elif [ -n "$container" ]; then say container "$container"
elif [ -r /run/systemd/container ]; then
	IFS= read -r line </run/systemd/container
	say container "$line"
elif [ -r /proc/self/cgroup ]; then
	while IFS= read -r line; do
		case $line in
		*/docker/* | */docker-*) say container docker ;;
		*/libpod[-_]*) say container podman ;;
		*/kubepods*) say container kubernetes ;;
		*/lxc/* | */lxc.payload*) say container lxc ;;
		*) continue ;;
		esac
		break
	done </proc/self/cgroup
fi

if [ -r /proc/$$/status ]; then
	while read -r key _ uid _; do
		[ "$key" = Uid: ] && say uid "$uid" && break
	done </proc/$$/status
fi

status=0 told=
if command -v "$py" >/dev/null 2>&1; then
	[ -r / ] && exec 3</ # Python compares what it has at a path with what this shell has (view.py)
	"$py" -B -c "$run" "$boot" "$size"
	status=$?
	case $status in
	93) exit 0 ;;           # Python has sent all facts
	94) told=again ;;       # all but the GPUs: nvidia-smi reported nothing
	95) told=hung ;;        # all but the GPUs: nvidia-smi did not end
	96) exit 1 ;;           # all facts, but the errand failed
	*) say python "$(command -v "$py")" ;;
	esac
else
	# A disk or a file server that fails does not show that nothing is there.
	said=$(LC_ALL=C ls -d -- "$py" 2>&1 >/dev/null)
	case $said in
	'' | *"not found" | *"No such file or directory" | *"Not a directory" | *"Permission denied" | *"symbolic links") ;;
	*) say failed "$said" && exit 1 ;;
	esac
	[ -L "$py" ] && say link "$(readlink -- "$py")"
fi

# Sends only the names of the GPUs: from nvidia-smi -L if the driver does not know compute_cap; from
# the kernel's module if nvidia-smi is missing, or its library is of another version.
names() {
	case $1 in
	*"GPU "*" (UUID"*)
		for line in $1; do
			case $line in
			"GPU "*)
				line=${line#GPU *: }
				say gpu "${line%% (UUID*}"
				;;
			esac
		done
		;;
	*)
		set +f
		for file in /proc/driver/nvidia/gpus/*/information; do
			[ -r "$file" ] || continue
			while IFS=' 	' read -r key value; do
				[ "$key" = Model: ] && say gpu "$value"
			done <"$file"
		done
		# A job that requested no GPU may not open them.
		for file in /dev/nvidia[0-9]*; do
			[ -e "$file" ] || continue
			case $(LC_ALL=C && : 2>&1 <>"$file") in *"not permitted"*) say hidden "$file" && break ;; esac
		done
		;;
	esac
	[ -r /proc/driver/nvidia/version ] || return 0
	IFS= read -r line </proc/driver/nvidia/version
	say driver "$line"
}

smi() {
	# A broken driver makes it hang for ever.
	limit=
	command -v timeout >/dev/null 2>&1 && limit='timeout 20'
	LC_ALL=C $limit nvidia-smi "$@" </dev/null 2>/dev/null
}

gpus() {
	out= code=0
	if [ "$1" = hung ]; then
		code=124
	elif command -v nvidia-smi >/dev/null 2>&1; then
		[ "$1" = again ] || out=$(smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader) || code=$?
		case $code:$out in
		124:* | *,*,*) ;;
		*) out=$(smi -L) || code=$? ;;
		esac
	fi
	[ $code = 124 ] && say hung nvidia-smi && out=
	kept=$IFS IFS='
'
	set -f # a name is no pattern
	case $out in
	*,*,*) for line in $out; do say smi "$line"; done ;;
	*) names "$out" ;;
	esac
	set +f
	IFS=$kept
}

# Sends the facts that Python would have sent.
alone() {
	say machine "$(uname -m 2>/dev/null)"
	say libc "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
	[ -r /proc/cpuinfo ] || return
	while IFS= read -r line; do
		case $line in
		flags*) say flags "${line#*: }" && break ;;
		esac
	done </proc/cpuinfo
}

gpus "$told"
[ -n "$told" ] && exit 0
alone
say end
exit $status
