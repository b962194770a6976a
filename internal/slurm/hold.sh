# Keeps a private folder, $1, on each node to which a file is brought, until the input ends or
# the job does; then removes it with its contents. Prints the name of the node, the step, and the
# free kilobytes there.
umask 077
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
trap 'rm -rf "$1"; exit' HUP INT TERM
mkdir "$1" || exit
echo "dsbuild-folder $SLURMD_NODENAME $SLURM_STEP_ID $(df -Pk "$1" | awk 'END { print $4 }')"
while read -r _; do :; done
rm -rf "$1"
