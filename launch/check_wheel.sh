#!/usr/bin/env bash
# Installs a wheel in a fresh environment and uses it from an empty folder, where nothing in this repository can be imported.
#   launch/check_wheel.sh dist/sacglam-0.1.0-py3-none-any.whl
# PYTHON is the interpreter (3.11 or 3.12). With PACKAGES=FOLDER only the wheel is installed, and its dependencies are taken
# from FOLDER, the site-packages of another environment.
set -euo pipefail
wheel=$(realpath "$1")
python=${PYTHON:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
unset PYTHONPATH
export PYTHONSAFEPATH=1 MPLBACKEND=agg

"$python" -m venv --without-pip "$place/venv"
bin=$place/venv/bin
site=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [ -n "${PACKAGES:-}" ]; then
  echo "$PACKAGES" > "$site/other.pth"
  "$python" -m pip --quiet --python "$bin/python" install --no-deps --ignore-installed "$wheel"
else
  "$python" -m pip --quiet --python "$bin/python" install "$wheel"
fi
mkdir "$place/empty"
cd "$place/empty"

step() { echo "== $*"; "$@" > "$place/output" 2>&1 || { tail -40 "$place/output"; exit 1; }; }
small=(--set steps=64 --set tracking.to=[] --set replay.random_steps=0 --set evaluation.episodes=4 --set evaluation.every_episodes=2)
sacglam=$bin/sacglam

step "$bin/python" - "$site" <<'PY'
import sys
from pathlib import Path
import sacglam
from sacglam import config
from sacglam.tools.experiments import plan
assert Path(sacglam.__file__).is_relative_to(Path(sys.argv[1]).resolve()), sacglam.__file__
for name in config.names():
    config.load(name)
for name in plan.ABLATIONS:
    assert [variant.config() for variant in plan.from_file(Path(name)).variants]
assert len(config.names()) > 40 and len(plan.ABLATIONS) == 4, (config.names(), plan.ABLATIONS)
PY
step "$sacglam" --help
step "$sacglam" doctor
step "$sacglam" train quickstart --out runs/first "${small[@]}"
step "$sacglam" evaluate runs/first --episodes 2
step "$sacglam" play runs/first
step "$sacglam" export runs/first adapter
step "$sacglam" train simple/ppo --dry-run
step "$sacglam" train paper/sac_her_flan_t5_base --dry-run --set model.name=builtin-t5 --set model.quantize=none
step "$sacglam" collect demos.jsonl simple/sac --episodes 5
step "$sacglam" compare quickstart simple/ppo --seeds 1 --threads 1 "${small[@]}"

echo "== shell completion"
complete() { _SACGLAM_COMPLETE=complete_bash COMP_WORDS="sacglam $1" COMP_CWORD=2 "$sacglam"; }
complete "train paper/sac_her_f" | grep -qx paper/sac_her_flan_t5_base
complete "compare samp" | grep -qx sampling
complete "train mine.y" | { ! grep -q .; }  # no name begins like this, so the shell completes files
echo "$(basename "$wheel") is whole"
