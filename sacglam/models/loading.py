"""Loading a language model by name, decoder-only or encoder-decoder."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from sacglam.config.sections import BUILT_IN, ModelConfig
from sacglam.errors import ModelError
from sacglam.models.architectures import architecture_of
from sacglam.models.load_errors import check_folder, check_parts, explained, looks_local, read_whole
from sacglam.models.lora import add_adapters
from sacglam.models.nf4 import read_in_4_bits
from sacglam.models.packed_lm import ACTOR
from sacglam.models.packing_check import check_architecture, check_packing, layer_kinds

BUILTIN, BUILTIN_T5 = (Path(__file__).parent / name.replace("-", "_") for name in BUILT_IN)
_SAFE = {"trust_remote_code": False, "use_safetensors": True}
"""Nothing that is loaded may run code: neither a model's own modules nor pickled weights."""
_WIDEST_MERGED = 16  # times the rank
_MOST_LAYERS = 4096  # with more, it takes hours to build the layers and find that their weights are missing
ANY_LENGTH = 1 << 20
"""The limit of tokens for a model without one; memory sets a lower one."""


@dataclass(frozen=True)
class ModelText:
    """A model without its weights: its source, shape, tokenizer, and the longest prompt + action in tokens."""

    source: str
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    max_tokens: int


@dataclass(frozen=True)
class LoadedModel(ModelText):
    """A model with its weights."""

    model: PreTrainedModel


def load_model(settings: ModelConfig, device: torch.device) -> LoadedModel:
    """Load a model that can be packed, frozen, in evaluation mode.

    Raises:
        ModelError: it is not found or cannot be packed, or the package that quantises it is missing.
    """
    text = load_text(settings)
    dtype: torch.dtype = getattr(torch, settings.dtype)
    quantised = settings.quantize == "nf4"
    options: dict[str, Any] = {"dtype": dtype, **_SAFE}  # attention: sdpa, or eager if the model has no other
    if device.type == "cpu" and dtype == torch.bfloat16:
        options["attn_implementation"] = "eager"  # the backward pass of sdpa is slow there
    if device.type == "cuda":
        # cuDNN's attention, which torch prefers, makes a plan for each new shape; shapes differ between batches.
        torch.backends.cuda.enable_cudnn_sdp(False)
        if not quantised:
            options["device_map"] = {"": device}  # tensor by tensor: several ranks could fill the host's memory
    if not (quantised and sys.stderr.isatty()):  # only quantisation takes long; downloads have bars of their own
        logging.disable_progress_bar()
    with explained(settings.name):
        check_parts(text.source)
        read = partial(read_whole, partial(architecture_of(text.config).auto.from_pretrained, text.source), **options)
        model = read_in_4_bits(read, dtype, device) if quantised else read()
        model = model.to(device).requires_grad_(False).eval()
        check_packing(model, settings.name)
    return LoadedModel(**vars(text), model=model)


def load_text(settings: ModelConfig) -> ModelText:
    """All that an engine needs if it loads the weights itself; `source` is a folder or a Hugging Face name.

    Raises:
        ModelError: it is not found, has an architecture that cannot be packed, or has no tokenizer.
    """
    config = load_shape(settings)
    with explained(settings.name):
        source = _source_of(settings.name)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        # Without tokenizer files, transformers makes a tokenizer that knows no words.
        if not tokenizer("Goal", add_special_tokens=False)["input_ids"]:
            raise ValueError("its tokenizer finds no tokens in a plain word, as without its files")
        return ModelText(source, config, tokenizer, _max_tokens(config))


def load_shape(settings: ModelConfig) -> PreTrainedConfig:
    """A model's configuration alone.

    Raises:
        ModelError: it is not found, or has an architecture that cannot be packed.
    """
    with explained(settings.name):
        config: PreTrainedConfig = AutoConfig.from_pretrained(_source_of(settings.name), trust_remote_code=False)
        for name, value in config.get_text_config().to_dict().items():
            if name.endswith("layers") and isinstance(value, int) and value > _MOST_LAYERS:
                raise ValueError(f"expected {name} of at most {_MOST_LAYERS}, got {value}")
        check_architecture(config, settings.name)
    return config


def _source_of(name: str) -> str:
    """The folder or Hugging Face name that a model is read from."""
    if name in BUILT_IN:  # even if there is such a folder here
        return str(BUILTIN.with_name(name.replace("-", "_")))
    if looks_local(name):
        check_folder(Path(name))
    return name


def lora_config(settings: ModelConfig, config: PreTrainedConfig) -> LoraConfig:
    """The adapter's shape. It leaves out the output layer, where engines ignore it in prompt log-probabilities.

    Raises:
        ModelError: the model has no such layers.
    """
    lora, task = settings.lora, architecture_of(config).task
    shape = partial(LoraConfig, r=lora.rank, lora_alpha=lora.alpha, task_type=task)  # alpha: any number will do
    every = shape(target_modules="all-linear")
    if lora.layers is None:
        return every
    if config.is_encoder_decoder:
        raise ModelError(
            f"model.lora.layers is for decoder-only models; in {settings.name!r} ({config.model_type}) peft would "
            "adapt the encoder's layers of the same numbers, below all of the decoder; leave it out"
        )
    layers = config.get_text_config().num_hidden_layers
    if lora.layers > layers:
        raise ModelError(
            f"expected model.lora.layers of at most {layers}, all that {settings.name!r} has; got {lora.layers}"
        )
    chosen = list(range(layers - lora.layers, layers))
    # By name, since peft cannot choose layers among other targets.
    return shape(target_modules=list(adapted_layers(config, every)), layers_to_transform=chosen)


def merges(settings: ModelConfig, config: PreTrainedConfig) -> bool:
    """Whether `MergedLinear` is faster: in a model hardly wider than the adapter's rank.

    Not with bfloat16, in which the sum W + s B A would lose small updates, nor with 4 bits, which it would undo.
    """
    exact = settings.dtype == "float32" and settings.quantize == "none"
    return exact and config.get_text_config().hidden_size <= _WIDEST_MERGED * settings.lora.rank


def adapted_layers(config: PreTrainedConfig, lora: LoraConfig) -> tuple[str, ...]:
    """The last parts of the names of the layers that get an adapter, e.g. `q_proj`, found on a model without weights.

    Raises:
        ModelError: no layer fits `lora.target_modules`.
    """
    with torch.device("meta"):
        model = architecture_of(config).auto.from_config(config)
        adapted = add_adapters(model, lora, [ACTOR]).targeted_module_names
    return tuple(sorted({name.rpartition(".")[2] for name in adapted}))


def _max_tokens(config: PreTrainedConfig) -> int:
    """The longest prompt + action: the least of all positions, any attention window, and longrope's first range.

    Beyond that range, longrope uses other frequencies, for the whole batch if one sequence is longer.
    """
    if config.is_encoder_decoder:  # the T5 family: relative positions
        return ANY_LENGTH
    text_config = config.get_text_config()
    values = text_config.to_dict()
    lengths = [text_config.max_position_embeddings]
    rope = values.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        lengths.append(rope["original_max_position_embeddings"])
    kinds = layer_kinds(text_config)
    windows = {
        "sliding_window": "sliding_attention",
        "attention_chunk_size": "chunked_attention",
        "keep_window_size": "full_attention",  # Doge: of longer inputs it keeps some tokens, even later ones
    }
    for setting, kind in windows.items():
        if values.get(setting) and (not kinds or kind in kinds):
            lengths.append(values[setting])
    return int(min(lengths))
