#!/usr/bin/env bash
# The first thing to run on a machine with GPUs, in less than 9 minutes. What must work comes first:
#   ranks       updates of two learner ranks over NCCL, against plain torch (one rank on a single GPU)
#   train       short runs, float32 and with vLLM in bfloat16, whose engine's policy is compared with the learner's all the time
#   engine      vLLM's scoring
#   memory      what --dry-run predicts, and what updates take
#   kernels     kernels that an update launches and their time; roofline: what benchmarks.kernels counts without a GPU
# and then scoring and updates, packed against separate sequences, with peak memory. A part that fails is named at once.
#
#   launch/gpu_check.sh                        writes gpu_check.json (device, versions, commit, rows, skipped, failed)
#   launch/gpu_check.sh --out FILE             writes another file
#   launch/gpu_check.sh --device cpu           small sizes, to try the script itself
#   launch/gpu_check.sh --only ranks train     only these parts
#
# Attach the file to an issue, whatever it says: no GPU has run this code yet (README.md).
#
# Installs nothing. Needs torch (2.11 or later), transformers (5.17 or later), peft and what comes with these: numpy,
# tokenizers, safetensors, PyYAML. Where pydantic is missing, a stand-in that validates nothing takes its place and the
# file says so. PYTHON names the interpreter; SACGLAM_COMMIT the commit, where the copy has no .git.
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
