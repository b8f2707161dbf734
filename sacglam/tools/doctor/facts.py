"""Facts about a machine, and the findings of checks. Plain values, so that tests can describe any machine."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

Level = Literal["ok", "note", "warning", "fault"]
Way = Literal["one", "cpu", "gpu"]
"""How to train: in one process, with engines and learners on CPU, with them on GPUs."""
ALL: tuple[Way, ...] = ("cpu", "gpu", "one")
ENGINES: tuple[Way, ...] = ("cpu", "gpu")
CPU: tuple[Way, ...] = ("cpu",)
GPU: tuple[Way, ...] = ("gpu",)
NONE: tuple[Way, ...] = ()
PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


@dataclass(frozen=True)
class Gpu:
    """One GPU: its name, memory in GiB and compute capability ("9.0"); `error`: why torch cannot compute on it."""

    name: str
    memory_gib: float
    capability: str
    error: str | None = None


@dataclass(frozen=True)
class TorchBuild:
    """The CUDA version torch was built for (None: CPU build), the GPUs it finds, and its warning if there are none."""

    cuda: str | None
    gpus: tuple[Gpu, ...] = ()
    warning: str | None = None


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver: its version and its GPUs; `fault`: why it does not answer."""

    version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    fault: str | None = None


def pinned_versions() -> dict[str, str]:
    """The versions sacglam was tested with: a specifier for Python, and for each package that runs or engines need.

    From pyproject.toml in a checkout; otherwise from the installed metadata, which may be older.
    """
    if PYPROJECT.is_file():
        project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
        python, extras = project["requires-python"], project["optional-dependencies"]
        needed = [*project["dependencies"], *extras["distributed"]]
    else:
        python, stated = metadata.metadata("sacglam")["Requires-Python"], metadata.requires("sacglam") or []
        needed = [text for text in stated if "extra ==" not in text or "distributed" in text]
    packages: dict[str, str] = {canonicalize_name(each.name): str(each.specifier) for each in map(Requirement, needed)}
    return {"python": python, **packages}


@dataclass(frozen=True)
class Facts:
    """One machine and one Python environment on it."""

    tested: Mapping[str, str]
    """See `pinned_versions`."""
    python: tuple[int, int, int]
    executable: str
    system: str
    machine: str
    checkout: bool
    """Whether the package runs from its repository, which has `launch/`."""
    installed: Mapping[str, str]
    """Versions of all installed distributions by canonical name."""
    imports: Mapping[str, str | None] = field(default_factory=dict)
    """Import error by package, None if it works; packages that were not tried are missing."""
    torch: TorchBuild | None = None
    """None if torch was not tried or cannot be imported."""
    driver: Driver = Driver()
    compiler: str | None = None
    """The C compiler that Triton would call."""
    headers: str | None = None
    """This Python's C headers; None if they are not installed."""
    cpu: str = "unknown"
    avx2: bool = True

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that torch can use, else those of the driver."""
        return self.torch.gpus if self.torch and self.torch.gpus else self.driver.gpus

    @property
    def cuda(self) -> str | None:
        """The CUDA version torch was built for; empty for a CPU build, None if unknown."""
        if self.torch is not None:
            return self.torch.cuda or ""
        local = self.installed.get("torch", "").partition("+")[2]
        if local.startswith("cu"):
            return f"{local[2:-1]}.{local[-1]}"  # cu130 is CUDA 13.0
        return "" if local == "cpu" else None


@dataclass(frozen=True)
class Finding:
    """A line of the report: what was checked, what was found (`came`), the fix, and the kinds of training it blocks."""

    name: str
    level: Level
    came: str
    fix: str | None = None
    blocks: tuple[Way, ...] = NONE
