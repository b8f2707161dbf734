"""Everything that wants a GPU, measured in one go: `launch/gpu_check.sh`. One JSON file comes out, whatever fails.

Uses the standard library alone. Each part is a process of its own with a time-out, so a part that fails, hangs or runs
out of memory costs itself only; the file says which, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 500.0  # all parts together: machines are lent for 10 minutes at a time
GRACE_S = 15.0  # from TERM to KILL
TAIL = 2000  # characters of a failed part's output that are kept
NEEDS = {
    "engine": ("vllm", "pydantic"),
    "train": ("vllm", "ray", "deepspeed", "pydantic", "typer", "rich", "matplotlib"),
}
_MACHINE = "import json, sys; from benchmarks import common; print(json.dumps([common.machine(sys.argv[1], 1)]))"
_COUNT = "import torch; print(torch.cuda.device_count())"
_TINY_RUN = (
    "steps=640",
    "threads=1",
    "log_every_steps=64",
    "env.copies=8",
    "algo.update_interval=32",
    "algo.batch_size=32",
    "algo.warmup_updates=4",
    "critic.hidden=[64]",
    "replay.min_size=64",
    "evaluation.episodes=20",
    "tracking.aim=false",
    "engines.parity_every=1",  # every adapter's policy in the engine is held against the learner's
)


Skip = dict[str, str]


@dataclass(frozen=True)
class Part:
    """One process: its name, command and time-out. A benchmark prints rows; a training leaves its summary in `run`."""

    name: str
    command: list[str]
    timeout_s: float
    run: Path | None = None


@dataclass(frozen=True)
class Result:
    """Rows of a part, or the reason why there are none."""

    part: str
    seconds: float
    rows: list[dict[str, Any]]
    failure: str | None = None


def benchmark(name: str, module: str, device: str, timeout_s: float, *options: str) -> Part:
    """A module of benchmarks/ on `device`."""
    return Part(name, [sys.executable, "-m", f"benchmarks.{module}", "--device", device, *options], timeout_s)


def benchmarks(device: str) -> list[Part]:
    """The measurements: sizes for a GPU, or small ones that show on a CPU that everything runs."""
    if device == "cpu":
        small = ["--model-shape", "tiny", "--prompt-tokens", "64", "--actions", "4", "--repeats", "1", "--no-memory"]
        return [
            benchmark(f"{module} {dtype}", module, device, 120, "--dtype", dtype, *small)
            for module in ("scoring", "update")
            for dtype in ("float32", "bfloat16")
        ]
    common = ["--rows", "4", "--repeats", "5"]
    qwen = ["--model-shape", "qwen", "--dtype", "bfloat16"]
    return [
        benchmark("scoring float32", "scoring", device, 120, "--actions", "10", "50", *common),
        benchmark("update float32", "update", device, 120, "--actions", "10", *common),
        benchmark("scoring bfloat16", "scoring", device, 120, "--actions", "10", "50", "--dtype", "bfloat16", *common),
        benchmark("update bfloat16", "update", device, 120, "--actions", "10", "--dtype", "bfloat16", *common),
        benchmark("scoring qwen bfloat16", "scoring", device, 120, "--actions", "10", *qwen, *common),
        benchmark("update qwen bfloat16", "update", device, 120, "--actions", "10", *qwen, *common),
    ]


def engine(device: str) -> Part:
    """A vLLM engine's scoring: parity, computed tokens, and time against vLLM's default."""
    small = ["--model-shape", "tiny", "--prompt-tokens", "64", "--actions", "4", "--repeats", "1"]
    return benchmark(
        "engine", "engine", device, 180, *(small if device == "cpu" else ["--rows", "8", "--repeats", "3"])
    )


def training(device: str, gpus: int, folder: Path) -> Part:
    """A short training, on GPUs with an engine and the parity check on."""
    out = folder / "run"
    if device == "cpu":
        where = ["--device", "cpu"]  # in one process: vLLM is what the part before starts
    elif gpus >= 2:
        where = ["--gpus", str(gpus)]
    else:  # the engine and the learner share one GPU
        where = ["--gpus", "1", "--engines", "1", "--learners", "0", "--set", "engines.gpu_memory=0.4"]
    shorter = ["steps=320"] if device == "cpu" else []
    settings = [word for value in (*_TINY_RUN, *shorter) for word in ("--set", value)]
    command = [sys.executable, "-m", "sacglam", "train", *where, "--out", str(out), *settings]
    return Part("train", command, 240, out / "summary.json")


def run(part: Part, timeout_s: float) -> Result:
    """Run a part to its end, or for `timeout_s`; its children go with it."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as messages:
        process = subprocess.Popen(part.command, cwd=ROOT, stdout=output, stderr=messages, start_new_session=True)
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        seconds = round(time.monotonic() - started, 1)
        output.seek(0)
        messages.seek(0)
        text, told = output.read(), messages.read()
    print(told, file=sys.stderr, end="", flush=True)
    if code is None:
        return Result(part.name, seconds, [], f"ran past {timeout_s:.0f} s: {told[-TAIL:]}")
    if code:
        return Result(part.name, seconds, [], f"exit code {code}: {(told or text)[-TAIL:]}")
    try:
        return Result(part.name, seconds, _rows(part, text))
    except (OSError, ValueError) as error:
        return Result(part.name, seconds, [], f"no result: {error}: {text[-TAIL:]}")


def _rows(part: Part, output: str) -> list[dict[str, Any]]:
    if part.run is None:
        rows: list[dict[str, Any]] = json.loads(_last_list(output))
        return [{"part": part.name, **row} for row in rows]
    summary = json.loads(part.run.read_text())
    config = (part.run.parent / "config.yaml").read_text()
    return [{"part": part.name, "name": "train", **summary, "config": config}]


def _last_list(output: str) -> str:
    """The JSON list at the end of what a benchmark printed; engines print to the same place before it."""
    lines = output.splitlines()
    first = max((index for index, line in enumerate(lines) if line.startswith("[")), default=len(lines))
    return "\n".join(lines[first:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children; one that still runs is given time to end what it has started."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def collect(parts: list[Part], deadline: float) -> list[Result]:
    """All parts one after the other; what no time is left for fails with that reason."""
    results = []
    for part in parts:
        left = deadline - time.monotonic()
        print(f"== {part.name}", file=sys.stderr, flush=True)
        results.append(run(part, min(part.timeout_s, left)) if left > 5 else Result(part.name, 0.0, [], "no time left"))
        if results[-1].failure:
            print(f"-- {part.name} failed: {results[-1].failure}", file=sys.stderr, flush=True)
    return results


def report(machine: Result, results: list[Result], skipped: list[Skip]) -> dict[str, Any]:
    """What goes into the file."""
    known = machine.rows[0] if machine.rows else {"device": "unknown", "versions": {}, "commit": "unknown"}
    return {
        **{key: known[key] for key in ("device", "versions", "commit")},
        "pydantic": "the stand-in of benchmarks/bare" if os.environ.get("SACGLAM_BARE") else "installed",
        "seconds": {result.part: result.seconds for result in results},
        "rows": [row for result in results for row in result.rows],
        "skipped": skipped,
        "failed": [{"part": result.part, "reason": result.failure} for result in (machine, *results) if result.failure],
    }


def missing(names: tuple[str, ...]) -> list[str]:
    """Packages that are not installed; the stand-in for pydantic is none."""
    stood_in = {"pydantic"} if os.environ.get("SACGLAM_BARE") else set()
    return [name for name in names if name in stood_in or importlib.util.find_spec(name) is None]


def choose(always: list[Part], where_installed: list[Part], only: list[str] | None) -> tuple[list[Part], list[Skip]]:
    """The parts to run, and why the others are not."""
    chosen: list[Part] = []
    skipped: list[Skip] = []
    for part in (*always, *where_installed):
        absent = missing(NEEDS.get(part.name, ()))
        if only and not part.name.startswith(tuple(only)):
            skipped.append({"part": part.name, "reason": "not asked for"})
        elif absent:
            skipped.append({"part": part.name, "reason": f"not installed: {', '.join(absent)}"})
        else:
            chosen.append(part)
    return chosen, skipped


def gpu_count() -> int:
    """GPUs that torch can use; 0 where it does not answer."""
    done = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.stdout.strip().isdecimal() else 0


def main() -> int:
    """Measure, write the file, and tell whether all went well."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="the file to write")
    options.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: small sizes, to try the script"
    )
    options.add_argument("--only", nargs="+", help="parts whose names begin so")
    given = options.parse_args()
    deadline = time.monotonic() + DEADLINE_S
    with tempfile.TemporaryDirectory() as folder:
        gpus = gpu_count() if given.device == "cuda" else 0
        engines = [engine(given.device), training(given.device, gpus, Path(folder))]
        parts, skipped = choose(benchmarks(given.device), engines, given.only)
        machine = run(Part("machine", [sys.executable, "-c", _MACHINE, given.device], 90), 90)
        results = collect(parts, deadline)
    found = report(machine, results, skipped)
    given.out.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
