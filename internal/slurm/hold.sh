# Holds a folder, $1, that is for this user alone, on each node that a file is brought
# to, until the input ends or the job does: what is in it never stays. Says which node
# it is, of which step, and how many kilobytes are free there.
umask 077
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
trap 'rm -rf "$1"; exit' HUP INT TERM
mkdir "$1" || exit
echo "dsbuild-folder $SLURMD_NODENAME $SLURM_STEP_ID $(df -Pk "$1" | awk 'END { print $4 }')"
while read -r _; do :; done
rm -rf "$1"
