# Write standard input to the file $2, under the temporary name $1. $3 is the mode, set while the file
# is empty, $4 the size, $5 the sha256. $6 is the number of verified bytes of an earlier attempt. A
# file that is too short stays for a retry. The exit status is 0, or else the kind of error
# (receive.go); then the script prints the details and removes the file.
part=$1 target=$2 mode=$3 size=$4 sha256=$5 there=$6
LC_ALL=C
export LC_ALL
made= # to be removed if it fails
[ "$there" = 0 ] || made=yes
trap 'made=; fail 143' HUP INT TERM

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
[ ! -d "$target" ] || fail 83 "$target is a directory"
if [ "$there" = 0 ]; then
	said=$( (set -C && umask 077 && : >"$part") 2>&1) || case $said in
	*"ermission denied"*) fail 85 ;;
	*"No space"* | *"quota"*) fail 84 "$(free)" ;;
	*) fail 83 "$said" ;;
	esac
	made=yes
	said=$(chmod "$mode" "$part" 2>&1) || fail 83 "$said"
else
	is=$(wc -c <"$part")
	[ "$is" -eq "$there" ] || fail 86 "$is"
fi
room=$(free)
[ "$room" -ge $((size - there)) ] || fail 84 "$room"
# A file system may report that it is full while it has some blocks that it cannot give out.
said=$(cat 2>&1 >>"$part") || {
	room=$(free)
	[ "$room" -ge 1048576 ] || fail 84 "$room"
	case $said in *"No space"* | *"quota"*) fail 84 "$room" ;; esac
	fail 83 "$said"
}
is=$(wc -c <"$part")
if [ "$is" -lt "$size" ]; then
	made= # the connection has ended
fi
[ "$is" -eq "$size" ] || fail 86 "$is"
is=$(sum <"$part")
is=${is%% *}
[ -n "$is" ] || fail 83 "cannot compute the sha256 of $part"
[ "$is" = "$sha256" ] || fail 87 "$is"
said=$(mv -f "$part" "$target" 2>&1) || fail 83 "$said"
made=
