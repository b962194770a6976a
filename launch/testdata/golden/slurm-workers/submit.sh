#!/bin/bash
# Submits the master of train, waits until it runs, reads its node and submits
# the 3 workers. Rendered by "dsbuild launch slurm"; run it where sbatch is, with
# master.sbatch and worker.sbatch beside it.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

# Inside a job, sbatch would take over that job's size and ranks.
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

# Slurm's controller may be busy: a question that it leaves without an answer is
# asked again, for five minutes at least.
silent=0
while true; do
  if said=$(squeue --noheader --jobs="$master" --format='%T %B' 2>/dev/null); then
    silent=0
  elif why=$(squeue --noheader --jobs="$master" 2>&1 >/dev/null); [[ $why == *"Invalid job id"* ]]; then
    said=
  elif ((++silent < 150)); then
    sleep 2
    continue
  else
    echo "squeue does not answer: $why" >&2
    exit 1
  fi
  read -r state host <<<"$said" || true
  case ${state:-} in
  RUNNING) break ;;
  PENDING | CONFIGURING | REQUEUED) sleep 2 ;;
  *)
    echo "the master, job $master, ended before its workers started (${state:-gone}); see its log" >&2
    exit 1
    ;;
  esac
done
port=$((10000 + master % 20000)) # as master.sbatch takes it
echo "master: $host:$port"

export MASTER_ADDR=$host MASTER_PORT=$port MASTER_JOB=$master RDZV_ID=$master
for ((i = 1; i < 4; i++)); do
  worker=$(sbatch --parsable --export=ALL "$here/worker.sbatch")
  jobs+=("${worker%%;*}")
  echo "worker: job ${worker%%;*}"
done
complete=true
