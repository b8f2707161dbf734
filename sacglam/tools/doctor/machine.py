"""Checks of the machine: each a pure function from facts to findings."""

from __future__ import annotations

from collections.abc import Iterator

from sacglam.tools.doctor.facts import Facts, Gpu
from sacglam.tools.doctor.findings import Finding, Way
from sacglam.tools.doctor.packages import cuda_of

_CPU: frozenset[Way] = frozenset({"cpu"})
_GPU: frozenset[Way] = frozenset({"gpu"})
FEWEST_GPUS = 2
"""One for an engine, one for a learner; a single one is best used by one process."""
_FEWEST_CORES = 2
_LEAST_MEMORY_GIB = 8.0  # driver, an engine and a rank with small models took 5 GiB
_LEAST_SHM_GIB = 1.0
_FEWEST_OPEN_FILES = 4096
_LEAST_CAPABILITY_OF_BFLOAT16 = (8, 0)


def platform(facts: Facts) -> Iterator[Finding]:
    """System and CPU."""
    came = f"{facts.system} {facts.machine}, {facts.cpu}"
    if facts.system != "Linux":
        yield Finding("system", "note", came, "use a Linux machine for engines and learners", _CPU | _GPU)
    elif facts.machine != "x86_64":
        yield Finding("system", "note", came, "use an x86-64 machine for engines on CPU", _CPU)
    elif not facts.avx2:
        mend = "use a CPU with AVX2 for engines on CPU"
        yield Finding("system", "note", f"{came}, without AVX2", mend, _CPU)
    else:
        yield Finding("system", "ok", came)


def gpus(facts: Facts) -> Iterator[Finding]:
    """GPUs: there, and enough for engines and learners."""
    if facts.driver.fault:
        mend = "mend NVIDIA's driver until nvidia-smi lists the GPUs"
        yield Finding("GPU driver", "warning", facts.driver.fault, mend, _GPU)
        return
    if not facts.gpus:
        yield Finding("GPUs", "note", "none", f"use a machine with {FEWEST_GPUS} or more NVIDIA GPUs", _GPU)
        return
    if facts.driver.version:
        yield Finding("GPU driver", "ok", f"{facts.driver.version}, for CUDA up to {facts.driver.cuda or 'unknown'}")
    few = len(facts.gpus) < FEWEST_GPUS
    for index, gpu in enumerate(facts.gpus):
        yield Finding(f"GPU {index}", "ok", _describe(gpu))
    if few:
        came = "one, which one process uses best; engines and learners take one each"
        yield Finding(
            "GPUs", "note", came, "sacglam train  (one process on the GPU), or a machine with more GPUs", _GPU
        )


def gpu_use(facts: Facts) -> Iterator[Finding]:
    """Whether torch can use the GPUs that are there."""
    build = cuda_of(facts)
    if not facts.gpus or build is None:
        return
    if not build:
        mend = "install the CUDA build of torch (a plain `pip install torch` with the tested version, on Linux)"
        yield Finding("torch on GPU", "warning", "torch is a CPU build and leaves the GPUs unused", mend, _GPU)
    elif facts.torch is not None and not facts.torch.gpus:
        why = facts.torch.warning or f"the driver serves CUDA up to {facts.driver.cuda or 'unknown'}"
        mend = f"update NVIDIA's driver to one for CUDA {build}, or install torch for an older CUDA"
        came = f"torch for CUDA {build} can use none of them: {why}"
        yield Finding("torch on GPU", "warning", came, mend, _GPU)
    elif facts.torch is not None:
        yield from (_architecture(index, gpu, facts) for index, gpu in enumerate(facts.torch.gpus))


def _architecture(index: int, gpu: Gpu, facts: Facts) -> Finding:
    assert facts.torch is not None
    name = f"torch on GPU {index}"
    if not runs_on(gpu.capability, facts.torch.architectures):
        known = ", ".join(facts.torch.architectures)
        came = f"no kernels for compute capability {_dotted(gpu)}; this torch has {known}"
        mend = "install a torch built for that GPU, or use another GPU (CUDA_VISIBLE_DEVICES)"
        return Finding(name, "fault", came, mend, _GPU)
    if gpu.capability < _LEAST_CAPABILITY_OF_BFLOAT16:
        return Finding(name, "warning", "no fast bfloat16", "sacglam train --set model.dtype=float32")
    return Finding(name, "ok", "kernels and bfloat16")


def runs_on(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Whether kernels run on a GPU: `sm_` code on later minors of its major, `compute_` is compiled when used."""
    for name in architectures:
        kind, _, digits = name.partition("_")
        number = digits.rstrip("af")
        if not number.isdecimal():
            continue
        built = (int(number[:-1]), int(number[-1]))
        same_major = built[0] == capability[0] and built[1] <= capability[1]
        if same_major or (kind == "compute" and built <= capability):
            return True
    return not architectures


def resources(facts: Facts) -> Iterator[Finding]:
    """Cores, memory, shared memory and open files, of which engines and Ray want some."""
    few = facts.cores < _FEWEST_CORES
    yield Finding(
        "cores",
        "warning" if few else "ok",
        f"{facts.cores} for this process",
        f"give it {_FEWEST_CORES} or more for engines and learners: they take one each" if few else None,
    )
    yield from _at_least("memory", facts.memory_gib, _LEAST_MEMORY_GIB, "engines, learners and driver share it")
    yield from _at_least(
        "/dev/shm", facts.shm_gib, _LEAST_SHM_GIB, "give the container more, e.g. docker run --shm-size=8g: Ray uses it"
    )
    if facts.open_files is not None:
        short = facts.open_files < _FEWEST_OPEN_FILES
        mend = "ulimit -n 65536: Ray opens many" if short else None
        yield Finding("open files", "warning" if short else "ok", f"{facts.open_files:,} at most", mend)


def _at_least(name: str, came: float | None, least: float, mend: str) -> Iterator[Finding]:
    if came is None:
        return
    if came < least:
        yield Finding(name, "warning", f"{came:.2f} GiB, engines want {least:.0f} or more", mend)
    else:
        yield Finding(name, "ok", f"{came:.1f} GiB")


def _describe(gpu: Gpu) -> str:
    return f"{gpu.name}, {gpu.memory_gib:.0f} GiB, compute capability {_dotted(gpu)}"


def _dotted(gpu: Gpu) -> str:
    return ".".join(map(str, gpu.capability)) if gpu.capability != (0, 0) else "unknown"
