#!/bin/bash
# Submits the master of train, waits until it runs, learns its node and submits
# the 3 workers. Rendered by "dsbuild launch slurm"; run it where sbatch is, with
# master.sbatch and worker.sbatch beside it.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

# Submitted from inside a job, sbatch would take over that job's size and ranks.
# SLURM_CONF only says where the configuration is.
for name in "${!SLURM_@}"; do
  [[ $name == SLURM_CONF ]] || unset "$name"
done

# What was submitted is cancelled when not all of it could be.
jobs=()
complete=false
trap 'if [[ $complete == false && ${#jobs[@]} -gt 0 ]]; then scancel "${jobs[@]}"; fi' EXIT
trap 'exit 130' INT TERM

master=$(sbatch --parsable "$here/master.sbatch")
master=${master%%;*} # with several clusters ";CLUSTER" follows
jobs+=("$master")
echo "master: job $master"

while true; do
  state=$(squeue --noheader --jobs="$master" --format=%T 2>/dev/null) || state=
  case $state in
  RUNNING) break ;;
  PENDING | CONFIGURING | REQUEUED) sleep 2 ;;
  *)
    echo "the master, job $master, ended before its workers came (${state:-gone}); see its log" >&2
    exit 1
    ;;
  esac
done
host=$(squeue --noheader --jobs="$master" --format=%B)
port=$((10000 + master % 20000)) # as master.sbatch takes it
echo "master: $host:$port"

export MASTER_ADDR=$host MASTER_PORT=$port MASTER_JOB=$master RDZV_ID=$master
for ((i = 1; i < 4; i++)); do
  worker=$(sbatch --parsable --export=ALL "$here/worker.sbatch")
  jobs+=("${worker%%;*}")
  echo "worker: job ${worker%%;*}"
done
complete=true
