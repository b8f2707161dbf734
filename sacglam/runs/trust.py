"""Whose code a run's folder may bring in: only the user decides that.

What the user names is trusted: a configuration file, an override, an argument. What a folder names is not, unless it
comes with sacglam or was registered by the program that reads the folder.
"""

from pathlib import Path

from sacglam.config import Config
from sacglam.envs import foreign_code
from sacglam.errors import ConfigError

_OWN_RAY = (None, "auto", "local")
"""Addresses of a Ray that this machine or its environment chose. Ray unpickles what any other cluster sends."""


def needed(config: Config) -> list[str]:
    """What a run with this configuration would import or connect to on its folder's word alone; empty if nothing."""
    code = foreign_code(config.env.name, config.env.options)
    return code if config.runtime.address in _OWN_RAY else [*code, f"Ray at {config.runtime.address}"]


def check(config: Config, file: Path) -> None:
    """Refuse the configuration in a run's `file` if it names code of others.

    Raises:
        ConfigError: it does.
    """
    if code := needed(config):
        raise ConfigError(
            f"{file} names {' and '.join(map(repr, code))}, which would run code that does not come with sacglam; if "
            "the run is yours, or you trust whoever made it, pass --trust (in Python: trusted=True)"
        )
