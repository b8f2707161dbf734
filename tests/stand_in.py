"""A stand-in for vLLM's engines that starts in seconds; see `tests.with_stand_in`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load
from typing_extensions import override

from sacglam import build
from sacglam.config import Config
from sacglam.models.agent_model import AgentModel
from sacglam.models.packed_lm import ACTOR
from sacglam.scoring.base import Engine
from sacglam.types import Adapter, LogPolicy, Query


class StandIn(Engine):
    """Scores by the packed forward pass of a model of its own."""

    def __init__(self, model: AgentModel) -> None:
        self.model = model

    @override
    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        return self.model.log_policy(queries)

    @override
    @torch.no_grad()
    def load(self, adapter: Adapter) -> None:
        given, own = load(adapter.files[SAFETENSORS_WEIGHTS_NAME]), self.model.lm.adapter_parameters(ACTOR)
        assert given.keys() == own.keys()
        for name, parameter in own.items():
            parameter.copy_(given[name])
        self.version = adapter.version


def engine(config: Config) -> StandIn:
    """In place of `vllm_engine`."""
    return StandIn(build.build_model(config))
