# Runs salloc, with these arguments, for as long as its own input lasts, however the
# program ends that holds the other end. With its input ends what salloc has started,
# and so the job; only a salloc that waits for nodes needs to be told: at once by the
# word stop, and else after some seconds, for one that is told while it ends may hang.
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
