# unsafe FOLDER FILE... names the first file or folder that lets another user change what dsbuild uses, with
# its owner and mode. It says nothing if there is none. The files lie below FOLDER, each after the folder
# that has it, and none may be a link. FOLDER itself may have links of this user or of root. What does not
# exist yet is safe.
unsafe() (
	set -f
	export LC_ALL=C
	me=$(id -u) at='' rest=${1%/}/ links=0
	shift
	while [ -n "$rest" ]; do
		name=${rest%%/*} rest=${rest#*/}
		case $name in '' | .) continue ;; ..) at=${at%/*} && continue ;; esac
		look "$at/$name" || return 0
		case $mode in
		l*)
			owned && links=$((links + 1)) && [ "$links" -le 40 ] || blame "$at/$name" || return 0
			name=$(readlink "$at/$name") rest=$name/$rest
			case $name in /*) at='' ;; esac
			continue
			;;
		d????????[tT]*) owned || blame "$at/$name" || return 0 ;; # nobody can rename a file of others there
		*) owned && closed || blame "$at/$name" || return 0 ;;
		esac
		at=$at/$name
	done
	for name; do
		look "$at/$name" || continue
		case $mode in l*) blame "$at/$name" || return 0 ;; esac
		owned && closed || blame "$at/$name" || return 0
	done
)
# look FILE sets the mode, the owner and the group of a file. It fails if there is no such file.
look() {
	set -- $(ls -ldn "$1" 2>/dev/null)
	mode=$1 owner=$3 group=$4
	[ $# -gt 4 ]
}
# owned tells whether the file belongs to this user or to root.
owned() { [ "$owner" = 0 ] || [ "$owner" = "$me" ]; }
# closed tells whether its owner alone can write it. The owner's own group may, if it has no other member.
closed() {
	case $mode in
	????????w*) return 1 ;;
	?????w*) ;;
	*) return 0 ;;
	esac
	entry=$(getent group "$group") && user=$(id -un "$owner") || return 1
	case "${entry%%:*} ${entry##*:}" in "$user " | "$user $user") return 0 ;; esac
	return 1
}
# blame says that a file is not safe, and fails.
blame() {
	printf 'other users can change %s (owner %s, mode %s)\n' "$1" "$(id -un "$owner" 2>/dev/null || echo "$owner")" "$mode"
	return 1
}
