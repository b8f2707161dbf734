"""Checks, on small queries, that a language model can be packed and that its frozen layers can be skipped."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from sacglam.errors import ModelError
from sacglam.memory import kept_states_bytes
from sacglam.models.architectures import T5_FAMILY, architecture_of, start_token
from sacglam.models.layers import FrozenLayers
from sacglam.models.logprobs import SelectedLogProbs
from sacglam.models.packed_lm import PackedLM
from sacglam.models.tokens import Ids, TokenisedQuery

ATTENTION_KINDS = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
"""Layer kinds, by their names in configurations, in which positions interact only through the attention mask."""
HIDDEN_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Largest relative gap between hidden states; observed: below 3e-7 in float32, above 2e-4 where state leaks."""
SCORE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""Largest gap between log-probabilities, in nats, beyond their rounding (1 in bfloat16 from 128 on)."""
_LONG, _SHORT = (np.arange(1, 9), (np.arange(3), np.arange(5))), (np.array([4, 2]), (np.array([3]),))
_LONGEST_TRIAL = 2048
"""Widest window, in tokens, that is tried."""


@torch.no_grad()
def check_packing(model: PreTrainedModel, name: str) -> None:
    """Compare the packed scores of small queries with those of separate sequences.

    It finds models that leak state between actions (recurrent, hybrid), scale or cap logits, ignore positions, or apply
    their own window to packed tokens, so decoder-only models need no list of architectures. Encoder-decoders do,
    because experts (Switch) compete for tokens in a batch but not in this check.

    Raises:
        ModelError: the model refuses the packed input, or its hidden states or scores differ.
    """
    check_architecture(model.config, name)
    text_config = model.config.get_text_config()
    if foreign := layer_kinds(text_config) - ATTENTION_KINDS:
        reason = f"it has layers of kind {sorted(foreign)}, whose state leaks between actions"
        raise unpackable(model.config, name, reason)
    dtype = model.get_output_embeddings().weight.dtype
    rng = np.random.default_rng(0)

    def query(*lengths: int) -> TokenisedQuery:
        prompt, *actions = (rng.integers(1, text_config.vocab_size, size=length) for length in lengths)
        return TokenisedQuery(prompt, tuple(actions))

    small = query(8, 3, 1, 5)
    hidden_gap, score_gap = _gaps(model, small, name)
    if not hidden_gap <= HIDDEN_TOLERANCE[dtype]:
        reason = (
            f"its hidden states differ by a share of {hidden_gap:.2g} from those of separate sequences, because state "
            "leaks between actions (recurrent or hybrid layers) or the given positions are ignored"
        )
        raise unpackable(model.config, name, reason)
    plain = _gives_plain_logits(model, _inputs(model, small.prompt, small.actions[0]))
    if not (score_gap <= SCORE_TOLERANCE[dtype] and plain):
        raise unpackable(model.config, name, "it scales, caps or shifts its logits after the output layer")
    for setting, width in _windows(text_config).items():
        half = min(width, _LONGEST_TRIAL) // 2 + 1  # the third action's tokens are further than this from the prompt
        if not _gaps(model, query(8, half, half, 5), name)[0] <= HIDDEN_TOLERANCE[dtype]:
            raise unpackable(model.config, name, f"its {setting} of {width} tokens counts those of other actions")


def keep_states(lm: PackedLM, name: str) -> None:
    """From now on, keep the hidden states of the frozen layers; warns if this model's cannot be skipped."""
    try:
        lm.frozen = FrozenLayers(lm.architecture, kept_states_bytes())
        check_frozen(lm, name)
    except ModelError as error:
        lm.frozen = None
        warnings.warn(f"hidden states of model {name!r} are not kept for reuse: {error}", stacklevel=2)


@torch.no_grad()
def check_frozen(lm: PackedLM, name: str) -> None:
    """Compare a pass that takes the frozen layers' kept output with a pass through all layers.

    Raises:
        ModelError: they differ, because later layers read more than the previous layer's output.
    """
    reason = "its layers read more than the one before them gives"
    try:
        # One at a time: together they would be rounded differently, which SmolLM2 amplifies to 1.4e-4.
        got = [lm.pack([TokenisedQuery(*query)]) for query in (_LONG, _SHORT)]
        passes = [replace(packed, frozen_BSH=None) for packed in got], got
        whole_XH, got_XH = (torch.cat([lm.forward(p).action_hidden_BAH[p.actions_BA] for p in each]) for each in passes)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        raise ModelError(f"model {name!r} fails without its frozen layers ({error}): {reason}") from error
    gap = ((got_XH - whole_XH).float().norm(dim=-1) / whole_XH.float().norm(dim=-1)).max().item()
    if not gap <= HIDDEN_TOLERANCE[whole_XH.dtype]:
        raise ModelError(f"the hidden states of model {name!r} without its frozen layers differ by {gap:.2g}: {reason}")


def _windows(text_config: PreTrainedConfig) -> dict[str, int]:
    """Tokens that a model's own code limits attention to, by the name of the setting.

    Not `sliding_window` and `attention_chunk_size`: they only affect the mask, which is given.
    """
    return {
        name: min(value, text_config.max_position_embeddings)
        for name, value in text_config.to_dict().items()
        if name.endswith(("window", "window_size", "topk")) and name != "sliding_window" and type(value) is int
    }


def _gaps(model: PreTrainedModel, query: TokenisedQuery, name: str) -> tuple[float, float]:
    """The largest gaps between packed and separate sequences: in hidden states (relative) and in scores (nats).

    Hidden states are those of the actions' last tokens, which have read all others.
    """
    architecture = architecture_of(model.config)(model)
    output = model.get_output_embeddings()
    try:
        packed = architecture.pack([query]).to(model.device)
        hidden_SH = architecture.hidden(packed)[0]
        separate = [_separate(model, query.prompt, action) for action in query.actions]
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = f"it fails on a packed sequence with a 4-D attention mask and positions ({error})"
        raise unpackable(model.config, name, reason) from error
    expected_AH = torch.stack([last_H for last_H, _ in separate])
    expected_N = torch.cat([log_prob_L for _, log_prob_L in separate])
    gap_AH = hidden_SH[packed.last_row_BA[0]].float() - expected_AH
    hidden_gap = (gap_AH.norm(dim=-1) / expected_AH.norm(dim=-1)).max().item()
    log_probs = SelectedLogProbs(output, architecture.logit_scale())
    got_N = log_probs(hidden_SH[packed.scored_rows_R], packed.token_row_N, packed.token_id_N, packed.row_starts)
    place_N = packed.token_index_BAT.flatten()
    got_N = got_N[place_N[place_N < len(got_N)]]  # in the order of actions, as expected
    rounding_N = 2 * torch.finfo(output.weight.dtype).eps * expected_N.abs()
    return hidden_gap, ((got_N - expected_N).abs() - rounding_N).max().item()


def check_architecture(config: PreTrainedConfig, name: str) -> None:
    """Refuse (`ModelError`) an encoder-decoder outside the T5 family, and a decoder that takes no positions."""
    if config.is_encoder_decoder and config.model_type not in T5_FAMILY:
        raise ModelError(
            f"model {name!r} is an encoder-decoder ({config.model_type}) whose actions cannot share one decoder "
            "sequence; expected T5, Flan-T5, mT5, UMT5 or UL2, or a decoder-only model"
        )
    text_config = config.get_text_config()
    numbered = config.is_encoder_decoder or "max_position_embeddings" in {
        *text_config.to_dict(),
        *text_config.attribute_map,
    }
    if not numbered or text_config.to_dict().get("alibi"):
        reason = "it takes no positions (max_position_embeddings), as ALiBi and recurrent layers do"
        raise unpackable(config, name, reason)


def _inputs(model: PreTrainedModel, prompt: Ids, action: Ids) -> dict[str, Any]:
    """One action after the prompt, as keyword arguments for the whole model."""
    if not model.config.is_encoder_decoder:
        return {"input_ids": _row(model, prompt, action), "use_cache": False}
    started = _row(model, np.array([start_token(model.config)]), action)
    return {"input_ids": _row(model, prompt), "decoder_input_ids": started, "use_cache": False}


def _row(model: PreTrainedModel, *parts: Ids) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))[None].to(model.device)


def _separate(model: PreTrainedModel, prompt: Ids, action: Ids) -> tuple[Tensor, Tensor]:
    """The hidden state (H,) at an action's last token, and the action's log-probabilities (L,), by the model's own
    forward."""
    hidden: list[Tensor] = []
    with model.get_decoder().register_forward_hook(lambda *call: hidden.append(call[-1].last_hidden_state[0].float())):
        log_prob_TV = torch.log_softmax(model(**_inputs(model, prompt, action)).logits.float(), dim=-1)[0]
    action_N1 = torch.from_numpy(action)[:, None].to(model.device)
    return hidden[0][-1], log_prob_TV[-len(action) - 1 : -1].gather(-1, action_N1).squeeze(-1)


def _gives_plain_logits(model: PreTrainedModel, inputs: dict[str, Any]) -> bool:
    """Whether the model returns its output layer's values unchanged, even large ones: random weights hide a cap."""
    head = model.get_output_embeddings()
    ramp_V = torch.linspace(-100, 100, head.weight.shape[0], device=head.weight.device, dtype=head.weight.dtype)
    with head.register_forward_hook(lambda module, args, output: ramp_V.expand_as(output)):
        logits_TV = model(**inputs).logits[0]
    return torch.equal(logits_TV, ramp_V.expand_as(logits_TV).to(logits_TV.dtype))


def unpackable(config: PreTrainedConfig, name: str, reason: str) -> ModelError:
    """The error for a model that cannot be packed."""
    return ModelError(
        f"model {name!r} ({config.model_type}) cannot be packed: {reason}; expected a transformer decoder such "
        "as Llama, Qwen2, Qwen3, Gemma or Mistral, or one of the T5 family"
    )


def layer_kinds(text_config: PreTrainedConfig) -> set[str]:
    """The kinds of the model's layers, by transformers' names; empty if the configuration has none."""
    return set(getattr(text_config, "layer_types", None) or ())
