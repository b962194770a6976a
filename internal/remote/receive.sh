# Writes a file to $3 under a temporary name of its own, $2. It reads a file on the node, $1, or
# its input if that is "-". $4 is the mode, set while the file is empty, $5 the size, $6 the
# sha256. $7, if not empty, is the number of bytes that are there already and right: then a file
# that comes too short stays for the next try. It ends with 0. Otherwise its status is the kind
# of error (receive.go), it prints the details, and nothing else is left.
source=$1 part=$2 target=$3 mode=$4 size=$5 sha256=$6 there=$7
LC_ALL=C
export LC_ALL
made=
trap '[ -z "$there" ] || made=; fail 143' HUP INT TERM

fail() {
	code=$1
	shift
	[ -z "$made" ] || rm -f "$part"
	[ $# = 0 ] || printf '%s\n' "$*"
	exit "$code"
}

# free is the number of bytes that may be written to the folder; a large number if it is not
# known.
free() {
	kilobytes=$(df -Pk "$folder" 2>/dev/null | awk 'END { print $4 }')
	case $kilobytes in
	'' | *[!0-9]*) echo 9223372036854775807 ;;
	*) echo $((kilobytes * 1024)) ;;
	esac
}

folder=$(dirname "$target")
[ -d "$folder" ] || fail 81
[ "$source" = - ] || [ -r "$source" ] || fail 82
[ ! -d "$target" ] || fail 83 "$target is a folder"
room=$(free)
[ "$room" -ge $((size - ${there:-0})) ] || fail 84 "$room"
if [ "${there:-0}" = 0 ]; then
	said=$( (set -C && umask 077 && : >"$part") 2>&1) || { [ -w "$folder" ] && fail 83 "$said"; fail 85; }
	made=yes
	said=$(chmod "$mode" "$part" 2>&1) || fail 83 "$said"
else
	made=yes
	is=$(wc -c <"$part")
	[ "$is" -eq "$there" ] || fail 86 "$is"
fi
# A file system may report that it is full while it has some blocks that it cannot give out.
said=$(cat -- "$source" 2>&1 >>"$part") || {
	room=$(free)
	[ "$room" -ge 1048576 ] || fail 84 "$room"
	case $said in *"No space"* | *"quota"*) fail 84 "$room" ;; esac
	fail 83 "$said"
}
is=$(wc -c <"$part")
if [ -n "$there" ] && [ "$is" -lt "$size" ]; then
	made= # the connection has ended
fi
[ "$is" -eq "$size" ] || fail 86 "$is"
if command -v sha256sum >/dev/null; then
	is=$(sha256sum <"$part")
else
	is=$(openssl dgst -sha256 -r <"$part")
fi
is=${is%% *}
[ -n "$is" ] || fail 83 "neither sha256sum nor openssl is there"
[ "$is" = "$sha256" ] || fail 87 "$is"
[ -n "$there" ] || sync "$part" 2>/dev/null # older ones know no single file
said=$(mv -f "$part" "$target" 2>&1) || fail 83 "$said"
made=
