#!/usr/bin/env bash
# One run over the nodes of a SLURM allocation.
#
#   sbatch launch/slurm.sh                                           the default configuration below, over all GPUs
#   sbatch --nodes=4 launch/slurm.sh mine.yaml --set steps=1000      arguments go to `sacglam train`
#   RUN=runs/mine sbatch launch/slurm.sh                             names the run's folder
#
# A Ray head starts on the first node, a Ray worker on each of the others, and `sacglam train` on the head's node; it places
# engines and learner ranks on all of them. The run's folder and the Python environment must be on a file system that
# all nodes share.
#
# When the time is nearly up, or the job is preempted, SLURM sends TERM to this script. It forwards the signal to the run,
# which writes a checkpoint and exits; the job is then requeued under the same number, so it finds the same folder and
# resumes.
#SBATCH --job-name=sacglam
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
# B: only the script gets the signal, 120 s before the end. A checkpoint waits for the interval in progress; raise this if
# your intervals take longer.
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
# A requeued job appends to its log.
#SBATCH --open-mode=append
#SBATCH --output=sacglam-%j.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"

RUN=${RUN:-runs/slurm-$SLURM_JOB_ID}  # a requeued job keeps its number
PORT=${PORT:-6379}                    # change it if two jobs may share a node
START_S=${START_S:-300}               # seconds for all nodes to join
[ $# -gt 0 ] || set -- paper/sac_her_qwen2.5_0.5b

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
gpus_per_node=${SLURM_GPUS_ON_NODE:-0}
if [ "$gpus_per_node" -eq 0 ]; then
  echo "error: expected GPUs on the nodes, SLURM granted none; ask for them with --gpus-per-node" >&2
  exit 1
fi

# on NODE COMMAND...: run one process on that node. It replaces the calling subshell, so that a signal to the subshell
# reaches it. --overlap: steps share the node; otherwise each would wait for the one before. From SLURM 22.05 on a step
# has a single core unless it asks for the job's --cpus-per-task.
cpus=${SLURM_CPUS_PER_TASK:-1}
on() {
  local node=$1
  shift
  exec srun --overlap --nodes=1 --ntasks=1 --cpus-per-task="$cpus" --nodelist="$node" "$@"
}

# The nodes communicate over the network of the head's own address. If it has several, choose one: HEAD_ADDRESS=10.0.0.1.
# Ray obeys anyone who reaches its ports: a token of this job keeps other users of that network out.
address=${HEAD_ADDRESS:-$(on "$head" hostname --ip-address | awk '{print $1; exit}')}
mask=$(umask)
umask 077
token=$(mktemp "$HOME/.sacglam-ray-token.XXXXXX")
od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token RAY_USAGE_STATS_ENABLED=0
# Ray records its cluster in this folder; in a shared one, jobs on the same node would find each other's, or one that they
# may not read. If an engine's own process dies, its children, which hold the GPUs' memory, end with it.
export RAY_TMPDIR=/tmp/sacglam-$SLURM_JOB_ID RAY_process_group_cleanup_enabled=1

steps=()
training=
finish() { # ray start --block ends all of a node's Ray with its step
  [ ${#steps[@]} -eq 0 ] || kill "${steps[@]}" 2>/dev/null || true
  rm -f "$token"
}
trap finish EXIT

signals=0
forward() { # the run finishes its interval and writes a checkpoint
  signals=$((signals + 1))
  [ -z "$training" ] || kill -TERM "$training" 2>/dev/null || true
}
trap forward TERM

resources=(--num-cpus="$cpus" --num-gpus="$gpus_per_node" --disable-usage-stats --block)
on "$head" ray start --head --node-ip-address="$address" --port="$PORT" --include-dashboard=false "${resources[@]}" &
steps+=($!)
deadline=$((SECONDS + START_S))
joined() { # the number of nodes in the cluster
  ray status --address "$address:$PORT" 2>/dev/null | grep -c '^ *[0-9]* node_' || true
}
until_joined() { # until_joined N
  until [ "$(joined)" -ge "$1" ] || [ "$signals" -gt 0 ]; do
    if [ $SECONDS -ge $deadline ]; then
      echo "error: expected $1 Ray node(s) at $address:$PORT within $START_S s, got $(joined);" \
        "see the messages above, or set HEAD_ADDRESS to an address that all nodes reach" >&2
      exit 1
    fi
    sleep 1
  done
}
until_joined 1
for node in "${nodes[@]:1}"; do
  on "$node" ray start --address="$address:$PORT" "${resources[@]}" &
  steps+=($!)
done
until_joined "${#nodes[@]}"

gpus=$((gpus_per_node * ${#nodes[@]}))
run() {
  umask "$mask" # only the token and Ray's folder are private
  export RAY_ADDRESS=$address:$PORT
  if compgen -G "$RUN/checkpoints/step-*" >/dev/null; then
    exec sacglam train --resume "$RUN" --gpus "$gpus" --trust # begun by this job, or named by RUN
  fi
  [ ! -e "$RUN" ] || mv "$RUN" "$RUN.without-checkpoint-$(date +%s)"
  exec sacglam train "$@" --gpus "$gpus" --out "$RUN"
}

code=0
if [ "$signals" -eq 0 ]; then
  run "$@" &
  training=$!
  [ "$signals" -eq 0 ] || forward # it arrived while the run was starting
  while :; do # a signal also ends `wait`; call it again for the run's own exit code
    before=$signals status=0
    wait "$training" || status=$?
    [ "$status" -eq 127 ] || code=$status # 127: its code has been reported already
    [ "$signals" -ne "$before" ] || break
  done
fi

# 143: TERM arrived before the run could handle it.
if [ "$signals" -gt 0 ] && [[ $code == 0 || $code == 143 ]] && ! grep -qs '"finished": true' "$RUN/summary.json"; then
  echo "stopped before the last step: requeued as job $SLURM_JOB_ID"
  scontrol requeue "$SLURM_JOB_ID" || echo "could not be requeued; resume with: RUN=$RUN sbatch launch/slurm.sh" >&2
fi
exit "$code"
