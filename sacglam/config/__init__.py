"""The configuration: frozen, unknown keys refused, read from YAML with dotted overrides. Imports no torch.

Defaults are the paper's (Tables 2 and 3, Appendix C) where it gives them; `sacglam/configs/` holds whole experiments.
"""

from sacglam.config.experiment import Config
from sacglam.config.reading import LARGEST, QUICKSTART, load, located, names, override, parse, parse_complete, values_in

__all__ = [
    "LARGEST",
    "QUICKSTART",
    "Config",
    "load",
    "located",
    "names",
    "override",
    "parse",
    "parse_complete",
    "values_in",
]
