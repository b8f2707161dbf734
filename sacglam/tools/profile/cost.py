"""Floating-point operations of a packed pass, by counting, and how many passes an environment step takes at least.

A product of an (m, k) with a (k, n) matrix counts 2 m k n. Counted are the matrix products of the language model:
layers, attention and output layer. Left out are norms, softmax and the critic's heads, and all that is not a product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sacglam.config import Config
from sacglam.models.base import ACTOR, PackedLM
from sacglam.models.lora_lm import decoder_of, output_layer_of
from sacglam.models.seq2seq import PROMPT_LAYERS, encoder_of
from sacglam.models.tokens import TokenisedQuery


@dataclass(frozen=True)
class Positions:
    """Positions of packed sequences, and pairs of one and a position that it sees: itself, or one of the prompt's."""

    tokens: int
    pairs: int

    def __add__(self, other: Positions) -> Positions:
        return Positions(self.tokens + other.tokens, self.pairs + other.pairs)


@dataclass(frozen=True)
class Extent:
    """What states cost by: the positions of their prompts, those of their actions, and rows that are scored."""

    prompt: Positions
    actions: Positions
    rows: int

    @property
    def tokens(self) -> int:
        """All positions, padding left out."""
        return self.prompt.tokens + self.actions.tokens

    def __add__(self, other: Extent) -> Extent:
        return Extent(self.prompt + other.prompt, self.actions + other.actions, self.rows + other.rows)


def extent(queries: Iterable[TokenisedQuery], *, encoder: bool) -> Extent:
    """Of packed states without padding.

    P prompt tokens see P (P + 1) / 2, in an encoder P P. L positions of an action see L P + L (L + 1) / 2; a decoder
    beside an encoder has one more of them, the start token. Scored are one row for every first token (the prompt's
    last, or one start token), and that of each action token but the last.
    """
    total = Extent(Positions(0, 0), Positions(0, 0), 0)
    for query in queries:
        prompt, lengths = len(query.prompt), [len(action) for action in query.actions]
        blocks = [n + encoder for n in lengths]
        total += Extent(
            prompt=Positions(prompt, prompt * prompt if encoder else prompt * (prompt + 1) // 2),
            actions=Positions(sum(blocks), sum(n * prompt + n * (n + 1) // 2 for n in blocks)),
            rows=1 + sum(n - 1 for n in lengths),
        )
    return total


@dataclass(frozen=True)
class Stack:
    """What each position of a kind, a prompt's or an action's, is multiplied with on its way through the layers."""

    matrices: int
    """Weights of the layers' matrices (M)."""
    adapter: int
    """Weights of one LoRA adapter (m); 0 to leave it out."""
    attention: int
    """Layers x heads x width of a head (a)."""

    def forward(self, of: Positions) -> int:
        """2 (M + m) tokens + 4 a pairs."""
        return 2 * (self.matrices + self.adapter) * of.tokens + 4 * self.attention * of.pairs

    def backward(self, of: Positions) -> int:
        """2 (M + 2 m) tokens + 8 a pairs.

        The base is frozen, so its matrices have no gradient of their own and cost what they do in the forward pass;
        the adapter's and both factors of attention have one each.
        """
        return 2 * (self.matrices + 2 * self.adapter) * of.tokens + 8 * self.attention * of.pairs


@dataclass(frozen=True)
class Cost:
    """What a language model multiplies with.

    The two stacks of a decoder-only model are one and the same. In an encoder-decoder the prompt's is the encoder, and
    of the decoder the matrices that make keys and values of what was encoded; the actions' is the rest of the decoder.
    """

    prompt: Stack
    actions: Stack
    output: int
    """Weights of the output layer (H V)."""
    encoder: bool
    """Whether an encoder reads the prompt."""

    def extent(self, queries: Iterable[TokenisedQuery]) -> Extent:
        """Of states as this model packs them, without padding."""
        return extent(queries, encoder=self.encoder)

    def forward(self, of: Extent) -> int:
        """Both stacks, and 2 H V rows."""
        return self.prompt.forward(of.prompt) + self.actions.forward(of.actions) + 2 * self.output * of.rows

    def backward(self, of: Extent) -> int:
        """Both stacks, and 2 H V rows: the output layer is frozen, too."""
        return self.prompt.backward(of.prompt) + self.actions.backward(of.actions) + 2 * self.output * of.rows

    def plain(self) -> Cost:
        """The base model's alone: adapters can be merged into it."""
        return replace(self, prompt=replace(self.prompt, adapter=0), actions=replace(self.actions, adapter=0))


def layer_matrices(lm: PackedLM) -> list[Tensor]:
    """The matrices of all layers, an encoder's too, without embeddings, output layer and adapters.

    For a quantised one stands the matrix that it multiplies as, by shape and type, without its values.
    """
    return list(_matrices(_base(lm)).values())


def cost_of(lm: PackedLM) -> Cost:
    """Read off a model."""
    base = _base(lm)
    config = base.config.get_text_config()
    shape = config.to_dict()
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    width = shape.get("head_dim") or shape.get("d_kv") or config.hidden_size // heads
    matrices = _shared_out(base, _matrices(base))
    adapter = _shared_out(base, lm.adapter_parameters(ACTOR))
    return Cost(
        prompt=Stack(matrices[0], adapter[0], layers * heads * width),
        actions=Stack(matrices[1], adapter[1], (shape.get("num_decoder_layers") or layers) * heads * width),
        output=output_layer_of(base).weight.numel(),
        encoder=base.config.is_encoder_decoder,
    )


def _base(lm: PackedLM) -> PreTrainedModel:
    return next(module for module in lm.module.modules() if isinstance(module, PreTrainedModel))


def _matrices(base: PreTrainedModel) -> dict[str, Tensor]:
    """Those of `layer_matrices`, by name."""

    @cache
    def unpacked(outputs: int, inputs: int) -> Tensor:
        return torch.zeros(outputs, inputs, dtype=base.dtype, device=base.device)

    stacks = {"decoder": decoder_of(base)} | ({"encoder": encoder_of(base)} if base.config.is_encoder_decoder else {})
    return {
        f"{stack}.{name}.{key}": unpacked(module.out_features, module.in_features)
        if isinstance(module, nn.Linear) and not parameter.is_floating_point()
        else parameter
        for stack, layers in stacks.items()
        for name, module in layers.named_modules()
        if not isinstance(module, nn.Embedding) and "lora_" not in name
        for key, parameter in module.named_parameters(recurse=False)
        if parameter.ndim == 2
    }


def _shared_out(base: PreTrainedModel, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Weights that each position of a prompt meets, and those that an action's meets."""
    total = sum(tensor.numel() for tensor in tensors.values())
    if not base.config.is_encoder_decoder:
        return total, total
    prompt = sum(t.numel() for name, t in tensors.items() if any(part in name for part in PROMPT_LAYERS))
    return prompt, total - prompt


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
