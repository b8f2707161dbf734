"""Tiny models, and what the packed forward must equal: plain transformers and peft, one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MT5Config,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    T5Config,
    UMT5Config,
)

from sacglam.algos.sac import Sac, SacBatch, SacConfig
from sacglam.algos.sac_settings import AlphaConfig
from sacglam.clock import PhaseClock
from sacglam.config.sections import CriticConfig
from sacglam.models.actor_critic import ActorCritic
from sacglam.models.architectures import architecture_of
from sacglam.models.heads import PolicyHead, QHeads
from sacglam.models.packed_lm import ACTOR, PackedLM
from sacglam.models.tokens import QueryTokenizer, TokenisedQuery

Backbone = Literal["shared", "frozen", "separate"]
TargetBackbone = Literal["adapter", "online"]
VOCABULARY = 61
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.08,
}
# So few buckets that a prompt of eleven tokens meets the last one.
_T5_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "qwen2": lambda: Qwen2Config(**_SHAPE),
    "qwen3": lambda: Qwen3Config(**_SHAPE, head_dim=8),
    "llama": lambda: LlamaConfig(**_SHAPE, tie_word_embeddings=True),
    "gemma": lambda: GemmaConfig(**_SHAPE, head_dim=8),
    "mistral": lambda: MistralConfig(**_SHAPE),
    "gemma2": lambda: Gemma2Config(**_SHAPE, head_dim=8),
    # Its linear layers keep their weights transposed.
    "gpt2": lambda: GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=96),
    # Its layers drop out without a module for it.
    "opt": lambda: OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        dropout=0.1,
    ),
    "t5": lambda: T5Config(**_T5_SHAPE),
    # T5 1.1 and Flan-T5; UL2 is gated by silu.
    "flan": lambda: T5Config(**_T5_SHAPE, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "ul2": lambda: T5Config(**_T5_SHAPE, feed_forward_proj="gated-silu", tie_word_embeddings=False),
    "mt5": lambda: MT5Config(**_T5_SHAPE),
    "umt5": lambda: UMT5Config(**_T5_SHAPE),
}
DECODERS = ("qwen2", "qwen3", "llama", "gemma", "mistral")
SEQ2SEQ = ("t5", "flan", "ul2", "mt5", "umt5")
PACKED = (*DECODERS, *SEQ2SEQ)
BOTH = ("llama", "flan")  # one of each architecture


def tiny_model(
    name: str,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float32,
    shape: Mapping[str, Any] | None = None,
) -> PreTrainedModel:
    """A model of two layers with random weights, frozen; the same at every call. `shape` changes its sizes."""
    torch.manual_seed(0)
    config = CONFIGS[name]()
    config.update(dict(shape or {}))
    model = architecture_of(config).auto.from_config(config, attn_implementation=attention, dtype=dtype)
    if name in ("flan", "ul2", "mt5"):  # whose output layer is not the embedding
        model.lm_head.weight = nn.Parameter(0.3 * torch.randn(VOCABULARY, config.d_model, dtype=dtype))
    frozen: PreTrainedModel = model.requires_grad_(False).eval()
    return frozen


def lora(name: str = "llama") -> LoraConfig:
    task = architecture_of(CONFIGS[name]()).task
    return LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type=task)


def adapted(name: str, model: PreTrainedModel, adapters: Sequence[str] = (ACTOR,), **options: Any) -> PackedLM:
    """`model`, whose name in `CONFIGS` is `name`, behind the packed forward; its adapters as they are made."""
    return PackedLM(model, lora(name), adapters, **options)


@torch.no_grad()
def shake(lm: PackedLM, adapters: Sequence[str]) -> None:
    """Give every adapter weights of its own; B, which begins at zero, among them."""
    generator = torch.Generator().manual_seed(1)
    for adapter in adapters:
        for parameter in lm.adapter_parameters(adapter).values():
            parameter.copy_(0.15 * torch.randn(parameter.shape, generator=generator))


def tiny_lm(
    name: str = "llama",
    adapters: Sequence[str] = (ACTOR,),
    *,
    attention: str = "sdpa",
    bucket: int = 1,
    merged: bool = False,
) -> PackedLM:
    """A tiny model behind the packed forward, its adapters shaken."""
    lm = adapted(name, tiny_model(name, attention), adapters, merged=merged)
    lm.bucket = bucket
    shake(lm, adapters)
    return lm


def ragged(seed: int = 0, counts: Sequence[int] = (3, 1, 5), alike: bool = False) -> list[TokenisedQuery]:
    """Queries of different prompt lengths, numbers of actions and lengths of actions; `alike`: many begin alike."""
    rng = np.random.default_rng(seed)

    def ids(length: int) -> np.ndarray:
        return rng.integers(0, VOCABULARY, length)

    def action() -> np.ndarray:
        found = ids(int(rng.integers(1, 6)))
        if alike:
            found[:2] %= 2
        return found

    return [TokenisedQuery(ids(int(rng.integers(1, 12))), tuple(action() for _ in range(n))) for n in counts]


@dataclass(frozen=True)
class Alone:
    """One state, its actions scored one at a time."""

    log_prob_A: Tensor
    action_hidden_AH: Tensor
    prompt_hidden_H: Tensor


def alone(name: str, model: Callable[..., Any], query: TokenisedQuery) -> Tensor:
    """Log-probabilities (A,) of a query's actions, each of them alone, by a model as transformers or peft has it."""
    return torch.stack([_score(name, model, query.prompt, action)[0] for action in query.actions])


def _score(
    name: str, model: Callable[..., Any], prompt: np.ndarray, action: np.ndarray
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of one action alone, hidden states at its end and before it."""
    if name in SEQ2SEQ:
        inputs, before = {"input_ids": _row(prompt), "decoder_input_ids": _row([0], action)}, 0
    else:
        inputs, before = {"input_ids": _row(prompt, action)}, len(prompt) - 1
    output = model(**inputs, output_hidden_states=True)
    log_prob_TV = torch.log_softmax(output.logits[0], dim=-1)
    score = torch.zeros(())
    for place, token in enumerate(action, start=before):
        score = score + log_prob_TV[place, token]
    hidden_TH = (output.decoder_hidden_states if name in SEQ2SEQ else output.hidden_states)[-1][0]
    return score, hidden_TH[-1], hidden_TH[before]


def _row(*parts: Any) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))[None]


class Reference:
    """The same weights in a model of its own, asked the plain way: one action alone, no mask, no positions."""

    def __init__(
        self,
        name: str,
        lm: PackedLM,
        adapters: Sequence[str] = (ACTOR,),
        base: PreTrainedModel | None = None,
    ) -> None:
        """`base` takes the place of `tiny_model(name)`."""
        model = get_peft_model(base or tiny_model(name), lora(name), adapter_name=adapters[0])
        for adapter in adapters[1:]:
            model.add_adapter(adapter, lora(name))
        assert isinstance(model, PeftModel)
        own = dict(model.named_parameters())
        with torch.no_grad():
            for adapter in adapters:
                for parameter, value in lm.adapter_parameters(adapter).items():
                    prefix, matrix, end = parameter.rpartition(".")
                    own[f"{prefix}.{adapter}{matrix}{end}"].copy_(value)
        self._model = model
        self._name = name

    def __call__(self, query: TokenisedQuery, adapter: str = ACTOR) -> Alone:
        self._model.set_adapter(adapter)
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_("lora_" in name)
        found = [_score(self._name, self._model, query.prompt, action) for action in query.actions]
        log_probs, hidden, prompt_hidden = zip(*found, strict=True)
        return Alone(torch.stack(log_probs), torch.stack(hidden), prompt_hidden[0])

    def gradients(self, adapter: str = ACTOR) -> dict[str, Tensor]:
        """The LoRA gradients, by the names that `PackedLM.adapter_parameters` uses."""
        marker = f".{adapter}."
        return {
            n.replace(marker, "."): p.grad
            for n, p in self._model.named_parameters()
            if marker in n and "lora_" in n and p.grad is not None
        }


def gradients(lm: PackedLM, adapter: str = ACTOR) -> dict[str, Tensor]:
    """The LoRA gradients of the packed model; parameters without one are left out."""
    return {n: p.grad for n, p in lm.adapter_parameters(adapter).items() if p.grad is not None}


def assert_same_gradients(
    got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-4, rounding: float = 0.0
) -> None:
    """Every gradient is there, none of them is zero, and each is right relative to its own norm, but for `rounding`."""
    assert got.keys() == expected.keys()
    assert got
    for name, value in expected.items():
        size = value.norm().item()
        assert size > 0, name
        assert (got[name] - value).norm().item() <= tolerance * size + rounding, name


def assert_same_scores_and_gradients(lm: PackedLM, reference: Reference, queries: list[TokenisedQuery]) -> None:
    """One packed pass over all of them against each action alone: log-probs, hidden states, and LoRA gradients."""
    output = lm.forward(lm.pack(queries))
    got, expected = torch.zeros(()), torch.zeros(())
    for row, query in enumerate(queries):
        alone, count = reference(query), len(query.actions)
        torch.testing.assert_close(output.log_probs_BA[row, :count], alone.log_prob_A, atol=1e-5, rtol=0)
        torch.testing.assert_close(output.action_hidden_BAH[row, :count], alone.action_hidden_AH, atol=2e-5, rtol=0)
        torch.testing.assert_close(output.prompt_hidden_BH[row], alone.prompt_hidden_H, atol=2e-5, rtol=0)
        # Another weight for each action, so that no two gradients can make up for one another.
        weights_A = torch.arange(1.0, count + 1) + row
        got = got + (weights_A * output.log_probs_BA[row, :count]).sum()
        expected = expected + (weights_A * alone.log_prob_A).sum()
    got.backward()
    expected.backward()
    assert_same_gradients(gradients(lm), reference.gradients())


def tiny_actor_critic(
    lm: PackedLM,
    backbone: Backbone,
    target_backbone: TargetBackbone = "adapter",
    critic_input: str = "observation_action",
) -> tuple[ActorCritic, QHeads, QHeads]:
    """Actor and critic on `lm`, and the online and target heads; the target heads differ from the online ones."""
    torch.manual_seed(2)
    kind = {"backbone": backbone, "target_backbone": target_backbone}
    critic = critic_config([16], 2, critic_input, 0.3).model_copy(update=kind)
    model = ActorCritic(lm, cast(QueryTokenizer, None), PolicyHead(), critic)
    heads, target_heads = cast(QHeads, model._heads), model._target_heads
    with torch.no_grad():
        for parameter in target_heads.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return model, heads, target_heads


def adapters_of(backbone: Backbone, target_backbone: TargetBackbone = "adapter") -> list[str]:
    return ActorCritic.adapters(CriticConfig(backbone=backbone, target_backbone=target_backbone))


def critic_config(hidden: list[int], critics: int, critic_input: str, score_weight: float = 0.0) -> CriticConfig:
    """The heads of `critics` Q functions."""
    values = {"hidden": hidden, "num_critics": critics, "input": critic_input}
    return CriticConfig.model_validate({**values, "score_weight": score_weight})


def sac_batch(
    lm: PackedLM, lengths: Sequence[int] = (1, 1, 1)
) -> tuple[SacBatch, list[TokenisedQuery], list[TokenisedQuery | None]]:
    """Three windows, the second terminal, with all steps learnt; their states, and those after each window."""
    states = ragged(3, [(3, 1, 5)[i % 3] for i in range(sum(lengths))])
    following = ragged(4, (2, 4))
    width, rewards = max(lengths), (0.5, 1.0, 0.0)
    batch = SacBatch(
        packed=lm.pack(states),
        action_B=torch.tensor([(2, 0, 3)[i % 3] for i in range(sum(lengths))]),
        place_B=torch.tensor([(w + 1) * width - length + t for w, length in enumerate(lengths) for t in range(length)]),
        reward_WT=torch.tensor([[0.0] * (width - 1) + [reward] for reward in rewards]),
        return_after_W=torch.tensor([0.0, 0.0, 0.7]),
        bootstraps_W=torch.tensor([True, False, True]),
        last_packed=lm.pack(following),
    )
    return batch, states, [following[0], None, following[1]]


def sac_loss(
    model: ActorCritic, batch: SacBatch, alpha: float, train_actor: bool = True, config: SacConfig | None = None
) -> Tensor:
    """The loss of an update."""
    update = {"alpha": AlphaConfig(init=alpha), "warmup_updates": 0 if train_actor else 1}
    config = (config or SacConfig()).model_copy(update=update)
    return Sac(model, config, 1, np.random.default_rng(0), PhaseClock()).losses(batch, 0)[0]
