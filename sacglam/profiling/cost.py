"""Floating-point operations of a packed pass, by counting, and how many passes an environment step takes at least.

A product of an (m, k) with a (k, n) matrix counts 2 m k n. Counted are the matrix products of the language model:
layers, attention and output layer. Left out are norms, softmax and the critic's heads, and all that is not a product.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sacglam.config import Config
from sacglam.models.adapted import decoder_of, output_layer_of
from sacglam.models.base import ACTOR, PackedLM
from sacglam.models.tokens import TokenisedQuery


@dataclass(frozen=True)
class Extent:
    """What states cost by: tokens, pairs of a token and one it sees (itself among them), and rows that are scored."""

    tokens: int
    pairs: int
    rows: int

    def __add__(self, other: Extent) -> Extent:
        return Extent(self.tokens + other.tokens, self.pairs + other.pairs, self.rows + other.rows)


def extent(queries: Iterable[TokenisedQuery]) -> Extent:
    """Of packed states without padding: P prompt tokens see P (P + 1) / 2, L of an action L P + L (L + 1) / 2.

    Scored are the prompt's last row, for every first token, and each action's rows but the last.
    """
    total = Extent(0, 0, 0)
    for query in queries:
        prompt, lengths = len(query.prompt), [len(action) for action in query.actions]
        total += Extent(
            tokens=prompt + sum(lengths),
            pairs=prompt * (prompt + 1) // 2 + sum(n * prompt + n * (n + 1) // 2 for n in lengths),
            rows=1 + sum(n - 1 for n in lengths),
        )
    return total


@dataclass(frozen=True)
class Cost:
    """What a decoder multiplies with."""

    matrices: int
    """Weights of its layers' matrices (M); each token meets every one of them."""
    adapter: int
    """Weights of one LoRA adapter (m); 0 to leave it out."""
    attention: int
    """Layers x heads x width of a head (a)."""
    output: int
    """Weights of the output layer (H V)."""

    def forward(self, of: Extent) -> int:
        """2 (M + m) tokens + 4 a pairs + 2 H V rows."""
        return (
            2 * (self.matrices + self.adapter) * of.tokens + 4 * self.attention * of.pairs + 2 * self.output * of.rows
        )

    def backward(self, of: Extent) -> int:
        """2 (M + 2 m) tokens + 8 a pairs + 2 H V rows.

        The base is frozen, so its matrices have no gradient of their own and cost what they do in the forward pass;
        the adapter's and both factors of attention have one each.
        """
        layers = 2 * (self.matrices + 2 * self.adapter) * of.tokens
        return layers + 8 * self.attention * of.pairs + 2 * self.output * of.rows

    def plain(self) -> Cost:
        """The base model's alone: adapters can be merged into it."""
        return replace(self, adapter=0)


def layer_matrices(lm: PackedLM) -> list[Tensor]:
    """The matrices of a decoder's layers, without embeddings, output layer and adapters.

    For a quantised one stands the matrix that it multiplies as, by shape and type, without its values.
    """
    base = _base(lm)

    @cache
    def unpacked(outputs: int, inputs: int) -> Tensor:
        return torch.zeros(outputs, inputs, dtype=base.dtype, device=base.device)

    return [
        unpacked(module.out_features, module.in_features)
        if isinstance(module, nn.Linear) and not parameter.is_floating_point()
        else parameter
        for name, module in decoder_of(base).named_modules()
        if not isinstance(module, nn.Embedding) and "lora_" not in name
        for parameter in module.parameters(recurse=False)
        if parameter.ndim == 2
    ]


def cost_of(lm: PackedLM) -> Cost:
    """Read off a model."""
    base = _base(lm)
    config = base.config.get_text_config()
    heads = config.num_attention_heads
    width = config.to_dict().get("head_dim") or config.hidden_size // heads
    return Cost(
        matrices=sum(matrix.numel() for matrix in layer_matrices(lm)),
        adapter=sum(parameter.numel() for parameter in lm.adapter_parameters(ACTOR).values()),
        attention=config.num_hidden_layers * heads * width,
        output=output_layer_of(base).weight.numel(),
    )


def _base(lm: PackedLM) -> PreTrainedModel:
    return next(module for module in lm.module.modules() if isinstance(module, PreTrainedModel))


def forwards_per_step(config: Config) -> float:
    """How many scoring forwards F an environment step costs at least: one to act, and those of its updates.

    An update's row takes 2 F for forward and backward at s, and as much again for a critic with a backbone of its
    own. With SAC one F for the policy at s' comes to it, and one for the target there, unless they share a pass
    (`critic.target_backbone: online` on a shared or frozen backbone). With 16 rows a step: SAC 65 F, PPO 33 F.
    """
    algo, critic = config.algo, config.critic
    separate = critic.backbone == "separate"
    gradient = 4 if separate else 2
    if algo.type == "ppo":
        return 1 + gradient * algo.epochs
    bootstrap = 2 if separate or critic.target_backbone == "adapter" else 1
    return 1 + (gradient + bootstrap) * algo.updates_per_interval * algo.batch_size / algo.update_interval
