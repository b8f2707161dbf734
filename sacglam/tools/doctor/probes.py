"""Imports tried in processes of their own: a broken package can neither end the doctor nor make it wait for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sacglam.tools.doctor.facts import Gpu, TorchBuild

TIMEOUT_S = 120.0
_TORCH = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    found = {"cuda": torch.version.cuda, "architectures": torch.cuda.get_arch_list(), "gpus": []}
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(index)
            found["gpus"].append([p.name, p.total_memory / 2**30, [p.major, p.minor]])
    found["warning"] = next((str(w.message) for w in caught if "CUDA" in str(w.message)), None)
print(json.dumps(found))
"""
CODE = {
    "torch": _TORCH,
    "transformers": "from transformers import AutoModelForCausalLM, PreTrainedModel",
    "peft": "from peft import LoraConfig, get_peft_model",
    "vllm": "from vllm import LLM",
    "deepspeed": "import deepspeed",
    "ray": "import ray",
    "aim": "import aim",
    "bitsandbytes": "import bitsandbytes",
}
"""What is run to try a package; the names that vLLM and transformers load late are asked for."""


@dataclass(frozen=True)
class Outcome:
    """How a process ended: its last line of output, or why it failed."""

    output: str
    error: str | None


def run(code: str, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run Python code in this environment."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "default"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout_s, check=False, env=env
        )
    except subprocess.TimeoutExpired:
        return Outcome("", f"did not come to an end within {timeout_s:g} s")
    except OSError as error:
        return Outcome("", f"cannot start {sys.executable}: {error}")
    if done.returncode:
        return Outcome("", _reason(done.returncode, done.stderr))
    return Outcome(_last_line(done.stdout), None)


def imports(names: Iterable[str], workers: int, started: Callable[[str], None] = lambda _: None) -> dict[str, Outcome]:
    """Try the packages, at most `workers` at a time; `started` is told each name when its turn comes."""

    def attempt(name: str) -> tuple[str, Outcome]:
        started(name)
        return name, run(CODE[name])

    with ThreadPoolExecutor(max(1, workers)) as pool:
        return dict(pool.map(attempt, names))


def torch_build(outcome: Outcome) -> TorchBuild | None:
    """What torch said of itself."""
    if outcome.error is not None:
        return None
    found = json.loads(outcome.output)
    gpus = tuple(Gpu(name, memory, (major, minor)) for name, memory, (major, minor) in found["gpus"])
    return TorchBuild(found["cuda"], gpus, tuple(found["architectures"]), found["warning"])


def _reason(code: int, stderr: str) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = "; it was built for another CPU" if -code == signal.SIGILL else ""
        return f"ended by {name}{hint}"
    return _last_line(stderr) or f"exit code {code}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
