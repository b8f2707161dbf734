#!/usr/bin/env bash
# Takes the measurements that need a GPU, in less than 9 minutes:
#   scoring and update, packed against separate sequences, float32 and bfloat16, with peak memory of the GPU;
#   and, where vLLM, DeepSpeed and Ray are installed, the engine's benchmark and a short run with an engine whose policy
#   is compared with the learner's.
#
#   launch/gpu_check.sh                        writes gpu_check.json (device, versions, commit, rows, skipped, failed)
#   launch/gpu_check.sh --out FILE             writes another file
#   launch/gpu_check.sh --device cpu           small sizes, to try the script itself
#   launch/gpu_check.sh --only scoring update  only these parts
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
