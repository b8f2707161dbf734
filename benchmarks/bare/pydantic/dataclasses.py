"""The standard library's dataclasses, which validate nothing."""

from __future__ import annotations

import dataclasses
from typing import Any


def dataclass(*, config: Any = None, **options: Any) -> Any:
    """A dataclass; `config` has no effect."""
    return dataclasses.dataclass(**options)
