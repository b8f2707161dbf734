#!/usr/bin/env bash
# The first thing to run on a machine with GPUs, in less than 14 minutes. What must work comes first:
#   one process short training runs of SAC and PPO, whose policy is compared with the CPU's for the same weights
#   ranks       updates of two learner ranks over NCCL, against plain torch (one rank on a single GPU)
#   train       short runs with engines, float32 and with vLLM in bfloat16, whose policy is compared with the learner's
#   engine      vLLM's scoring
#   memory      what --dry-run predicts, and what updates take
#   kernels     kernels that an update launches and their time
# Then come scoring and updates, packed against separate sequences, and what benchmarks.kernels counts without a GPU
# (roofline). A part that fails is reported at once; one whose packages are missing is skipped with a message: DeepSpeed
# for ranks, Ray and DeepSpeed for train, vLLM for engine.
#
#   launch/gpu_check.sh                        writes gpu_check.json after each part: device, versions, commit, rows,
#                                              skipped, failed, not_run
#   launch/gpu_check.sh --out FILE             writes another file
#   launch/gpu_check.sh --device cpu           small sizes, to try the script itself
#   launch/gpu_check.sh --only ranks train     only these parts
#
# Attach the file to an issue, whatever it says: only one GPU has run this code (docs/guides/gpus.md).
#
# Installs nothing. Needs torch (2.11 or later), transformers (5.17 or later), peft and their dependencies: numpy,
# tokenizers, safetensors, PyYAML. Training, ranks and memory also need pydantic; docs/guides/gpus.md shows how to bring it to
# a machine without a network. Without it, the other parts use a stand-in that validates nothing, and the file says so.
# PYTHON names the interpreter, and SACGLAM_COMMIT the commit if the copy has no .git.
# The exit code is 1 if a part failed; the rows of the others are still in the file.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$(command -v python3 || command -v python)}

export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
if ! "$python" -c 'import pydantic' 2>/dev/null; then
  export PYTHONPATH="$PYTHONPATH:$root/benchmarks/bare" SACGLAM_BARE=1
fi
exec "$python" -m benchmarks.gpu_check "$@"
