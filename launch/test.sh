#!/usr/bin/env bash
# Creates its own environment, installs what the tests need, and runs every check.
#   launch/test.sh                 everything
#   launch/test.sh -m "not slow"   arguments go to pytest; -n 0 runs the tests one after the other
# SACGLAM_VENV is the environment's folder (default .venv), PYTHON the interpreter (3.11 or 3.12).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${SACGLAM_VENV:-.venv}
python=${PYTHON:-$(command -v python3.11 || command -v python3.12 || command -v python3)}

"$python" -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v in ((3, 11), (3, 12)) else
  f"expected Python 3.11 or 3.12, got {v[0]}.{v[1]}; name one with PYTHON=...")'
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "== installing into $venv"
export PIP_COMPILE=0  # only a small part of these packages is imported, and Python compiles that (PIP_NO_COMPILE=1 is the opposite)
"$venv/bin/python" -m pip install --quiet --editable '.[dev,docs,aim,nf4,gguf,babyai,gymnasium,openenv]'
"$venv/bin/python" -m pip install --quiet --editable '.[textworld]' ||
  echo "TextWorld cannot be installed, perhaps for lack of gcc and make: its tests are skipped"

lint() {
  echo "== ruff"
  "$venv/bin/ruff" check . && "$venv/bin/ruff" format --check . || return
  echo "== mypy"
  "$venv/bin/mypy" || return
  echo "== import-linter"
  "$venv/bin/lint-imports" --no-cache || return
  echo "== mkdocs"
  NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict --quiet
}
linted=$(mktemp)
lint > "$linted" 2>&1 &  # meanwhile the engines are installed, which it does not need
linting=$!

if "$venv/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)'; then
  launch/install_engines_cpu.sh "$venv/bin/python"
else
  echo "torch is a CUDA build: without \`pip install -e '.[distributed]'\` in $venv the tests of engines are skipped"
fi
launch/install_chromium.sh
if wait "$linting"; then passed=0; else passed=1; fi
cat "$linted"
rm "$linted"
[ "$passed" = 0 ]

# One worker more than cores, since tests also wait; at most four, since each needs gigabytes.
cores=$(nproc)
workers=$(( cores < 4 ? cores + 1 : 4 ))
# Two processes that each use all cores slow each other down tenfold, so each has one thread. Where tests ask for two,
# waiting threads sleep instead of spinning: the other core belongs to another worker.
unset PYTHONDONTWRITEBYTECODE  # tests start Python often, and without its cache each start compiles the package
# torch compiles nothing here, and preparing for it costs each process that has bitsandbytes a second or two.
export TORCHDYNAMO_DISABLE=1
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false MPLBACKEND=agg
echo "== pytest with $workers workers"
"$venv/bin/python" -m pytest -n "$workers" "$@"
