# unsafe DIR FILE... prints the first file or directory that lets another account change what dsbuild uses, with
# its owner and mode. It prints nothing if there is none. Each FILE is relative to DIR, follows the directory that
# contains it, and must not be a link. DIR itself may contain links of this account or of root. What does not exist
# yet is safe.
unsafe() (
	set -f
	export LC_ALL=C
	ls -d / >/dev/null 2>&1 || { echo "cannot check who can change $1: no ls in PATH" && return; }
	me=$(id -u) at='' rest=${1%/}/ links=0 listed=''
	shift
	while [ -n "$rest" ]; do
		case $rest in *"$newline"*) echo "cannot check who can change $at/$rest: a newline in its name" && return ;; esac
		[ -n "$listed" ] || listed=$(list "$at" "$rest")$newline
		name=${rest%%/*} rest=${rest#*/}
		case $name in '' | .) continue ;; ..) at=${at%/*} listed='' && continue ;; esac
		look || return 0
		case $mode in
		l*)
			owned && links=$((links + 1)) && [ "$links" -le 40 ] || blame "$at/$name" || return 0
			name=$(readlink "$at/$name") rest=$name/$rest listed=''
			case $name in /*) at='' ;; esac
			continue
			;;
		d????????[tT]*) owned || blame "$at/$name" || return 0 ;; # only the owner of a file can rename it there
		*) owned && closed "$at/$name" || blame "$at/$name" || return 0 ;;
		esac
		at=$at/$name
	done
	[ $# -gt 0 ] || return 0
	for name; do set -- "$@" "$at/$name" && shift; done
	listed=$(ls -ldn "$@" 2>/dev/null)$newline
	while look; do
		case $mode in l*) blame "${path%% -> *}" || return 0 ;; esac
		owned && closed "$path" || blame "$path" || return 0
	done
)
newline='
'
# list AT REST lists the directories below AT that are the parts of REST, up to a "..". ls sorts them: each comes before its
# contents. One ls takes as long as the rest of the script.
list() {
	at=$1 rest=$2
	set --
	while [ -n "$rest" ]; do
		name=${rest%%/*} rest=${rest#*/}
		case $name in '' | .) continue ;; ..) break ;; esac
		at=$at/$name
		set -- "$@" "$at"
	done
	[ $# = 0 ] || ls -ldn "$@" 2>/dev/null
}
# look takes the next file from listed: its mode, owner, group and path. It fails if there is none.
look() {
	path=${listed%%"$newline"*} listed=${listed#*"$newline"}
	set -- $path
	mode=$1 owner=$3 group=$4 path=/${path#* /}
	[ -n "$mode" ]
}
# owned reports whether the file belongs to this account or to root.
owned() { [ "$owner" = 0 ] || [ "$owner" = "$me" ]; }
# closed FILE reports whether only the owner can write to the file: neither others, nor a group with another member, nor
# an account or group in its access control list (ACL). macOS gives directories an ACL that only denies.
closed() {
	case $mode in
	????????w*) return 1 ;;
	??????????+) [ "$(uname)" = Darwin ] || { closed_list "$1"; return; } ;;
	esac
	case $mode in
	?????w*) private "$group" ;;
	esac
}
# closed_list FILE is closed for a file with an ACL. It fails without getfacl, because the list could add anyone.
closed_list() {
	list=$(getfacl -cpne "$1" 2>/dev/null | sed 's/^default://; s/[[:space:]]*#effective//') && [ -n "$list" ] || return 1
	while IFS=: read -r kind who rights effective; do
		case $kind:$who:${effective:-$rights} in
		mask:* | *:?-? | user::* | user:0:* | "user:$owner:"* | "user:$me:"*) ;;
		group:*) private "${who:-$group}" || return 1 ;;
		*) return 1 ;;
		esac
	done <<EOF
$list
EOF
}
# private GROUP reports whether the group is the owner's own: with the owner's name, without another member, and the
# primary group of no other account.
private() {
	entry=$(getent group "$1") && user=$(id -un "$owner") || return 1
	case "${entry%%:*} ${entry##*:}" in "$user " | "$user $user") ;; *) return 1 ;; esac
	getent passwd | while IFS=: read -r name secret id primary rest; do
		[ "$primary" != "$1" ] || [ "$id" = "$owner" ] || exit 1
	done
}
# blame FILE reports that a file is not safe, and fails.
blame() {
	printf 'other users can change %s (owner %s, mode %s)\n' "$1" "$(id -un "$owner" 2>/dev/null || echo "$owner")" "$mode"
	return 1
}
