"""Loading a language model by name, and the trial that shows whether it can be packed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, LoraModel, get_peft_model
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging

from sacglam.config import ModelConfig
from sacglam.errors import ModelError
from sacglam.models.causal import decoder_inputs, decoder_of, output_layer_of
from sacglam.models.logprobs import selected_log_probs
from sacglam.models.packing import pack
from sacglam.models.tokens import TokenisedQuery

BUILTIN = Path(__file__).parent / "builtin"
ATTENTION_KINDS = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers, as configurations name them, whose only path between positions is the attention mask."""
HIDDEN_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Relative gap allowed between hidden states; found: below 3e-7 in float32, and above 2e-4 where state leaks."""
SCORE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""Gap allowed between log-probabilities, in nats."""


@dataclass(frozen=True)
class LoadedModel:
    """A base model, its tokenizer, and how many tokens prompt and action may have together."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_tokens: int


def load_model(settings: ModelConfig, device: torch.device) -> LoadedModel:
    """Load a decoder-only model that can be packed, frozen, in evaluation mode.

    Raises:
        ModelError: not found, not decoder-only, or its packed scores differ from those of separate sequences.
    """
    text = load_text(settings)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of reading the files; downloads still show theirs
    try:
        model = AutoModelForCausalLM.from_pretrained(
            text.source, dtype=getattr(torch, settings.dtype), attn_implementation=settings.attention
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        raise _unloadable(settings.name, error) from error
    model = model.to(device).requires_grad_(False).eval()  # type: ignore[arg-type]
    if settings.gradient_checkpointing:
        _checkpoint_layers(model)
    check_packing(model, settings.name)
    return LoadedModel(model, text.tokenizer, text.max_tokens)


@dataclass(frozen=True)
class ModelText:
    """A model without its weights: where it is, its shape, its tokenizer, and the longest prompt + action in tokens."""

    source: str
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    max_tokens: int


def load_text(settings: ModelConfig) -> ModelText:
    """What an engine that loads the weights itself needs of a model; `source` is a folder or a Hugging Face name.

    Raises:
        ModelError: not found, not decoder-only, or without a tokenizer.
    """
    source = str(BUILTIN) if settings.name == "builtin" else settings.name
    try:
        config = AutoConfig.from_pretrained(source)
        if config.is_encoder_decoder:
            raise ModelError(
                f"model {settings.name!r} is an encoder-decoder ({config.model_type}); expected a decoder-only model"
            )
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _unloadable(settings.name, error) from error
    _check_tokenizer(tokenizer, settings.name)
    return ModelText(source, config, tokenizer, _max_tokens(config))


def _unloadable(name: str, error: Exception) -> ModelError:
    return ModelError(
        f"model {name!r} cannot be loaded; expected 'builtin', a Hugging Face name or a local folder with "
        f"config.json, *.safetensors and tokenizer files. The loader says: {error}"
    )


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Where a model's folder has no tokenizer files, transformers makes a tokenizer that knows no words."""
    if not tokenizer("Goal", add_special_tokens=False)["input_ids"]:
        raise ModelError(
            f"model {name!r} cannot be loaded: its tokenizer reads nothing in a plain word; is tokenizer.json missing?"
        )


def lora_config(settings: ModelConfig) -> LoraConfig:
    """The adapter's shape. The output layer never has one: engines drop its change from prompt log-probabilities."""
    lora = settings.lora
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # any number will do
        target_modules=lora.targets,
        task_type="CAUSAL_LM",
    )


def adapted_layers(config: PreTrainedConfig, lora: LoraConfig) -> tuple[str, ...]:
    """The last names of the layers that get an adapter, e.g. `q_proj`; found on a model without weights.

    Raises:
        ModelError: no layer fits `lora.target_modules`.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        try:
            tuner = get_peft_model(model, lora).base_model
        except ValueError as error:
            raise ModelError(f"no adapter fits model.lora.targets={lora.target_modules!r}: {error}") from error
    assert isinstance(tuner, LoraModel)
    return tuple(sorted({name.rpartition(".")[2] for name in tuner.targeted_module_names}))


def _checkpoint_layers(model: PreTrainedModel) -> None:
    """Recompute each layer in the backward pass. transformers does so in training mode alone, which would switch
    dropout on, too: so only the layers themselves are put in that mode, and not the modules within."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True


@torch.no_grad()
def check_packing(model: PreTrainedModel, name: str) -> None:
    """Hold the packed scores of a small query against those of separate sequences.

    Recurrent and hybrid models let state leak from one action to the next, some scale or cap their logits, some
    ignore positions: all show here, so that no list of architectures is needed.

    Raises:
        ModelError: the model refuses the packed input, or hidden states, scores or the way to the logits differ.
    """
    text_config = model.config.get_text_config()
    foreign = _layer_kinds(text_config) - ATTENTION_KINDS
    if foreign:
        raise _unpackable(model, name, f"it has layers of kind {sorted(foreign)}, whose state leaks between actions")
    ids = np.random.default_rng(0).integers(1, text_config.vocab_size, size=17)
    together = TokenisedQuery(ids[:8], (ids[8:11], ids[11:12], ids[12:17]))
    weight = output_layer_of(model).weight
    try:
        packed = pack([together]).to(weight.device)
        hidden_SH = decoder_of(model)(**decoder_inputs(model, packed)).last_hidden_state[0]
        separate = [_separate(model, together.prompt, action) for action in together.actions]
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise _unpackable(
            model, name, f"it does not take a packed sequence with a 4-D attention mask and positions ({error})"
        ) from error
    expected_SH, expected_N = (torch.cat(parts) for parts in zip(*separate, strict=True))
    gap_SH = hidden_SH[len(together.prompt) :].float() - expected_SH
    hidden_gap = (gap_SH.norm(dim=-1) / expected_SH.norm(dim=-1)).max().item()
    if not hidden_gap <= HIDDEN_TOLERANCE[weight.dtype]:
        raise _unpackable(
            model,
            name,
            f"its hidden states differ by a share of {hidden_gap:.2g} from those of separate sequences, because state "
            "leaks between actions (recurrent or hybrid layers) or positions are not taken as given",
        )
    got_N = selected_log_probs(hidden_SH[packed.scored_rows_R], weight, packed.token_row_N, packed.token_id_N)
    gap = (got_N - expected_N).abs().max().item()
    if not (gap <= SCORE_TOLERANCE[weight.dtype] and _gives_plain_logits(model, ids)):
        raise _unpackable(model, name, "it scales, caps or shifts its logits on the way from the output layer")


def _separate(model: PreTrainedModel, prompt: np.ndarray, action: np.ndarray) -> tuple[Tensor, Tensor]:
    """Hidden states (L, H) and log-probabilities (L,) of an action alone after the prompt, by the model's own way."""
    ids = torch.from_numpy(np.concatenate([prompt, action]))[None].to(model.device)
    hidden_TH = decoder_of(model)(input_ids=ids, use_cache=False).last_hidden_state[0]
    log_prob_TV = torch.log_softmax(model(input_ids=ids, use_cache=False).logits.float(), dim=-1)[0]
    log_prob_LV = log_prob_TV[len(prompt) - 1 : -1]
    return hidden_TH[len(prompt) :].float(), log_prob_LV.gather(-1, ids[0, len(prompt) :, None]).squeeze(-1)


def _gives_plain_logits(model: PreTrainedModel, ids: np.ndarray) -> bool:
    """Whether the output layer's values come out as they are, however large: random weights alone would hide a cap."""
    head = output_layer_of(model)
    ramp_V = torch.linspace(-100, 100, head.weight.shape[0], device=head.weight.device, dtype=head.weight.dtype)
    handle = head.register_forward_hook(lambda module, args, output: ramp_V.expand_as(output))
    try:
        logits_TV = model(input_ids=torch.from_numpy(ids)[None].to(model.device), use_cache=False).logits[0]
    finally:
        handle.remove()
    return torch.equal(logits_TV, ramp_V.expand_as(logits_TV).to(logits_TV.dtype))


def _unpackable(model: PreTrainedModel, name: str, reason: str) -> ModelError:
    return ModelError(
        f"model {name!r} ({model.config.model_type}) cannot be packed: {reason}; expected a transformer decoder such "
        "as Llama, Qwen2, Qwen3, Gemma or Mistral"
    )


def _layer_kinds(text_config: PreTrainedConfig) -> set[str]:
    """What the model's layers are, by transformers' names; nothing where the configuration does not tell."""
    try:
        return set(text_config.layer_types or ())
    except AttributeError:
        return set()


def _max_tokens(config: PreTrainedConfig) -> int:
    """The longest prompt + action: the positions, or the attention window where layers have one."""
    text_config = config.get_text_config()
    values = text_config.to_dict()
    try:
        lengths = [text_config.max_position_embeddings]
    except AttributeError as error:
        raise ModelError(
            f"the configuration of this {config.model_type} does not say how many positions it has; expected "
            f"max_position_embeddings among {sorted(values)}"
        ) from error
    kinds = _layer_kinds(text_config)
    for kind, setting in (("sliding_attention", "sliding_window"), ("chunked_attention", "attention_chunk_size")):
        if values.get(setting) and (not kinds or kind in kinds):
            lengths.append(values[setting])
    return int(min(lengths))
