"""The commands that mend."""

from __future__ import annotations

from sacglam.tools.doctor.facts import Facts

CUDA_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")


def pip(facts: Facts, what: str) -> str:
    """Install into this environment."""
    return f"{facts.executable} -m pip install {what}"


def package(facts: Facts, extra: str = "") -> str:
    """Install this package anew with its tested versions."""
    suffix = f"[{extra}]" if extra else ""
    return pip(facts, f"-e '.{suffix}'" if facts.checkout else f"'sacglam{suffix}'")


def cpu_engines(facts: Facts) -> str:
    """Install engines, DeepSpeed and Ray for a CPU."""
    return f"launch/install_engines_cpu.sh {facts.executable}"


def engines(facts: Facts) -> str:
    """Install engines, DeepSpeed and Ray for what this machine has."""
    return package(facts, "distributed") if facts.gpus else cpu_engines(facts)


def remove_companions(facts: Facts) -> str:
    """Remove what keeps torch from working."""
    return f"{facts.executable} -m pip uninstall -y {' '.join(CUDA_COMPANIONS)}"
