"""Loading a language model by name, and the trial that shows whether it can be packed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from sacglam.config import ModelConfig
from sacglam.errors import ModelError
from sacglam.models.causal import decoder_inputs
from sacglam.models.logprobs import selected_log_probs
from sacglam.models.packing import pack
from sacglam.models.tokens import TokenisedQuery

BUILTIN = Path(__file__).parent / "builtin"
PACKING_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5}


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
    source = str(BUILTIN) if settings.name == "builtin" else settings.name
    try:
        config = AutoConfig.from_pretrained(source)
        if config.is_encoder_decoder:
            raise ModelError(
                f"model {settings.name!r} is an encoder-decoder ({config.model_type}); expected a decoder-only model"
            )
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, settings.dtype), attn_implementation=settings.attention
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"model {settings.name!r} cannot be loaded; expected 'builtin', a Hugging Face name or a local folder with "
            f"config.json, *.safetensors and tokenizer files. The loader says: {error}"
        ) from error
    model = model.to(device).requires_grad_(False).eval()
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()  # transformers checkpoints in training mode alone; the dropout of these models is 0
    check_packing(model, settings.name)
    return LoadedModel(model, tokenizer, _max_tokens(config))


def lora_config(settings: ModelConfig) -> LoraConfig:
    """The adapter's shape. The output layer never has one: engines drop its change from prompt log-probabilities."""
    lora = settings.lora
    return LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=lora.targets, task_type="CAUSAL_LM")


@torch.no_grad()
def check_packing(model: PreTrainedModel, name: str) -> None:
    """Hold the packed scores of a small query against those of separate sequences.

    Recurrent and hybrid models let state leak from one action to the next, some scale or cap their logits, some
    ignore positions: all show here, so that no list of architectures is needed.

    Raises:
        ModelError: the model refuses the packed input, or the scores differ.
    """
    rng = np.random.default_rng(0)
    ids = rng.integers(1, model.config.get_text_config().vocab_size, size=17)
    together = TokenisedQuery(ids[:8], (ids[8:11], ids[11:12], ids[12:17]))
    weight = model.get_output_embeddings().weight
    try:
        packed = pack([together]).to(weight.device)
        hidden = model.get_decoder()(**decoder_inputs(model, packed)).last_hidden_state.flatten(0, 1)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ModelError(
            f"model {name!r} ({model.config.model_type}) does not take a packed sequence with a 4-D attention mask and "
            f"positions ({error}); expected a transformer decoder such as Llama, Qwen2, Qwen3, Gemma or Mistral"
        ) from error
    got = selected_log_probs(hidden[packed.scored_rows_R], weight, packed.token_row_N, packed.token_id_N)
    expected = torch.cat([_separate(model, together.prompt, action) for action in together.actions])
    gap = (got - expected).abs().max().item()
    if not gap <= PACKING_TOLERANCE[weight.dtype]:
        raise ModelError(
            f"model {name!r} ({model.config.model_type}) cannot be packed: its log-probabilities differ by {gap:.3g} from "
            f"those of separate sequences, more than {PACKING_TOLERANCE[weight.dtype]:g}. Its state leaks between actions "
            "(recurrent or hybrid layers) or it treats its logits in a way of its own; expected a transformer decoder "
            "such as Llama, Qwen2, Qwen3, Gemma or Mistral"
        )


def _separate(model: PreTrainedModel, prompt: np.ndarray, action: np.ndarray) -> torch.Tensor:
    ids = torch.from_numpy(np.concatenate([prompt, action]))[None].to(model.device)
    log_prob = torch.log_softmax(model(input_ids=ids, use_cache=False).logits.float(), dim=-1)[0]
    rows = range(len(prompt) - 1, ids.shape[1] - 1)
    return log_prob[list(rows), ids[0, len(prompt) :]]


def _max_tokens(config: object) -> int:
    """The longest prompt + action: the positions, or the attention window where layers have one."""
    values = config.get_text_config().to_dict()  # type: ignore[attr-defined]
    lengths = [values["max_position_embeddings"]]
    window = values.get("sliding_window")
    kinds = values.get("layer_types") or []
    if window and (not kinds or "sliding_attention" in kinds):
        lengths.append(window)
    return int(min(lengths))
