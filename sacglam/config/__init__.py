"""The configuration: frozen, unknown keys refused, read from YAML with dotted overrides. Imports no torch.

Defaults are the paper's (Tables 2 and 3, Appendix C) where it gives them; `sacglam/configs/` holds whole experiments.
"""

from sacglam.config.algorithm import AlgoConfig
from sacglam.config.experiment import Config
from sacglam.config.kinds import PartnerConfig
from sacglam.config.reading import LARGEST, QUICKSTART, load, located, names, override, parse, parse_complete
from sacglam.config.section import TRUST, Named, Section
from sacglam.config.sections import (
    CriticConfig,
    EnginesConfig,
    LearnersConfig,
    LoraSettings,
    ModelConfig,
    PolicyConfig,
    PromptConfig,
    ReplayConfig,
    RuntimeConfig,
    TrackingConfig,
)

__all__ = [
    "LARGEST",
    "QUICKSTART",
    "TRUST",
    "AlgoConfig",
    "Config",
    "CriticConfig",
    "EnginesConfig",
    "LearnersConfig",
    "LoraSettings",
    "ModelConfig",
    "Named",
    "PartnerConfig",
    "PolicyConfig",
    "PromptConfig",
    "ReplayConfig",
    "RuntimeConfig",
    "Section",
    "TrackingConfig",
    "load",
    "located",
    "names",
    "override",
    "parse",
    "parse_complete",
]
