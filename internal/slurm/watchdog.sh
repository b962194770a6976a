# Runs salloc, with these arguments, until its own input ends, in whatever way the program at the
# other end ends. When its input ends, so does the program that salloc has started, and with it
# the job. Only a salloc that waits for nodes must be signalled: at once after the word stop,
# else after some seconds, because a salloc that is signalled while it ends may hang.
exec 3<&0
salloc "$@" <&3 &
salloc=$!
(
	while read -r word; do
		[ "$word" != stop ] || break
	done
	[ "$word" = stop ] || sleep 3
	kill -TERM "$salloc"
	sleep 5
	kill -KILL "$salloc"
) <&3 >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$salloc"
status=$?
kill "$watch" 2>/dev/null
exit "$status"
