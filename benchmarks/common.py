"""What the benchmarks share: a model of known shape, states of known length, clocks, memory, and the form of a row."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import peft
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, LlamaConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast, T5Config

from benchmarks.separate import SeparateLM
from benchmarks.separate_seq2seq import SeparateSeq2SeqLM
from sacglam import cpu
from sacglam.config.sections import LoraSettings, ModelConfig
from sacglam.models.architectures import DecoderOnly, architecture_of
from sacglam.models.loading import lora_config
from sacglam.models.packed_lm import PackedLM
from sacglam.models.packing import Packed, pack_causal
from sacglam.models.tokens import TokenisedQuery
from sacglam.prompt import query
from sacglam.types import Observation

ROOT = Path(__file__).resolve().parent.parent
VARIANTS = ("packed", "separate", "repeat", "apart")
SHAPES: dict[str, dict[str, Any]] = {
    # The shape of SmolLM-135M, weights random.
    "smollm": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    # The shape of Qwen2.5-0.5B, weights random: configs/paper/*_qwen2.5_0.5b.yaml.
    "qwen": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    # The shape of the built-in model.
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
    },
}
T5_SHAPES: dict[str, dict[str, Any]] = {
    # The shape of Flan-T5-base, weights random: the paper's model.
    "t5-base": {
        "vocab_size": 32128,
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 12,
        "num_heads": 12,
        "tie_word_embeddings": False,
    },
    "t5-tiny": {"vocab_size": 512, "d_model": 96, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 3},
}
LORA_RANK = 16
MAX_TOKENS = 2048
_GROUPS = 10  # of actions that begin with the same tokens
FRAME_TOKENS = 3  # of a prompt: "Goal:", the goal's one word, "Action:"


def parser(description: str) -> argparse.ArgumentParser:
    """The options that scoring and update have in common."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    known = f"{', '.join([*SHAPES, *T5_SHAPES])}: random weights; or a folder with a model"
    options.add_argument("--model-shape", default="smollm", help=known)
    options.add_argument("--layers", type=int, help="layers instead of the shape's own number")
    options.add_argument("--actions", type=int, nargs="+", default=[10, 50], help="candidate actions of each state")
    options.add_argument("--prompt-tokens", type=int, default=200)
    options.add_argument("--action-tokens", type=int, default=4)
    options.add_argument(
        "--alike",
        type=int,
        default=0,
        help="first tokens that an action shares with a tenth of the others, as the commands of a text game do; with "
        "actions packed apart next to it; decoder-only",
    )
    options.add_argument("--rows", type=int, default=2, help="states in one batch")
    options.add_argument("--repeats", type=int, default=3, help="timed runs of each variant, interleaved")
    options.add_argument("--threads", type=int, default=1, help="CPU threads")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options.add_argument("--bucket", type=int, help="packed lengths are multiples of this (default: the device's)")
    options.add_argument(
        "--reference",
        choices=("plain", "lean"),
        default="plain",
        help="separate sequences with the logits of every position, as transformers gives them, or of those scored; "
        "decoder-only",
    )
    options.add_argument("--no-memory", dest="memory", action="store_false", help="leave peak memory out")
    options.add_argument("--peak-of", choices=VARIANTS, help=argparse.SUPPRESS)  # used for the fresh subprocess
    return options


def base_model(options: argparse.Namespace) -> PreTrainedModel:
    """The base model, with the same random weights at every call."""
    torch.manual_seed(0)
    config = model_config(options)
    auto = architecture_of(config).auto
    given = Path(options.model_shape).is_dir()
    model = auto.from_pretrained(options.model_shape) if given else auto.from_config(config, attn_implementation="sdpa")
    frozen: PreTrainedModel = model.to(options.device, getattr(torch, options.dtype)).requires_grad_(False).eval()
    return frozen


def model_config(options: argparse.Namespace) -> PreTrainedConfig:
    """The model's shape."""
    return shape_config(options.model_shape, options.layers)


def shape_config(name: str, layers: int | None = None) -> PreTrainedConfig:
    """One of the shapes, with as many `layers` as asked for."""
    if name in T5_SHAPES:
        shape = T5_SHAPES[name] | ({"num_layers": layers} if layers else {})
        return T5Config(**shape, feed_forward_proj="gated-gelu")
    if name not in SHAPES:
        return AutoConfig.from_pretrained(name)
    shape = SHAPES[name] | ({"num_hidden_layers": layers} if layers else {})
    return LlamaConfig(**shape, max_position_embeddings=MAX_TOKENS, tie_word_embeddings=True)


def variants(options: argparse.Namespace) -> tuple[str, ...]:
    """The variants to compare; encoding the prompt once and repeating it exists only for encoder-decoders."""
    if options.model_shape in T5_SHAPES:
        return VARIANTS[:3]
    return (*VARIANTS[:2], "apart") if options.alike else VARIANTS[:2]


def build_lm(
    variant: str, options: argparse.Namespace, adapters: Sequence[str], adapted: int | None = None
) -> PackedLM:
    """The language model of a variant, with the same weights for all of them; `adapted` as `model.lora.layers`."""
    model = base_model(options)
    settings = LoraSettings(rank=LORA_RANK, alpha=2.0 * LORA_RANK, layers=adapted)
    lora = lora_config(ModelConfig(lora=settings), model.config)
    if variant in ("packed", "apart"):
        lm = PackedLM(model, lora, adapters)
        lm.bucket = options.bucket or lm.bucket
        lm.architecture = Apart(model) if variant == "apart" else lm.architecture
        return lm
    if model.config.is_encoder_decoder:
        return SeparateSeq2SeqLM(model, lora, adapters, once=variant == "repeat")
    return SeparateLM(model, lora, adapters, lean=options.reference == "lean")


class Apart(DecoderOnly):
    """Packs actions without sharing the tokens with which they begin."""

    def pack(self, queries: Sequence[TokenisedQuery], bucket: int = 1) -> Packed:
        """No action shares its tokens."""
        return pack_causal(queries, bucket, share=False)


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One token for each word `w0`, `w1`, ...; and for the words of sacglam's prompt."""
    words = ["Goal:", "Action:", "[UNK]", *(f"w{i}" for i in range(vocabulary - 3))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def observation(seed: int, options: argparse.Namespace, actions: int) -> Observation:
    """A state whose prompt has `prompt_tokens` tokens and whose `actions` have `action_tokens` each."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = model_config(options).vocab_size - 3

    def text(words: int) -> str:
        ids = torch.randint(vocabulary, (words,), generator=generator)
        return " ".join(f"w{i}" for i in ids.tolist())

    begins = [text(options.alike) for _ in range(_GROUPS)] if options.alike else [""]
    return Observation(
        text=text(options.prompt_tokens - FRAME_TOKENS),
        actions=tuple(
            f"{begins[number % len(begins)]} {text(options.action_tokens - options.alike)}".strip()
            for number in range(actions)
        ),
    )


def check_lengths(tokenizer: PreTrainedTokenizerFast, state: Observation, options: argparse.Namespace) -> None:
    """Check that the lengths a row reports are those the model sees."""
    shown = query("w0", state)
    prompt, *actions = tokenizer([shown.prompt, *shown.actions], add_special_tokens=False)["input_ids"]
    assert len(prompt) == options.prompt_tokens, len(prompt)
    assert {len(ids) for ids in actions} == {options.action_tokens}


def prepare(options: argparse.Namespace) -> None:
    """Threads, allocator and attention as sacglam sets them."""
    cpu.prepare(options.threads)
    torch.backends.cuda.enable_cudnn_sdp(False)  # see `sacglam.models.loading`


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    repeats: int,
    device: str,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each run, taking turns, after one warm-up run of each."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            _synchronise(device)
            start = clock()
            run()
            _synchronise(device)
            took = clock() - start
            log(f"  {name} {'warm-up' if repeat == 0 else repeat}: {took:.3f} s")
            if repeat:
                seconds[name].append(took)
    return seconds


def peaks(module: str, options: argparse.Namespace, actions: int) -> dict[str, int]:
    """Peak bytes of each variant, in a process of its own, so that one does not hide another."""
    found = {}
    for variant in variants(options):
        # The same command again: argparse takes the last of a repeated option.
        arguments = [*sys.argv[1:], "--actions", str(actions), "--peak-of", variant]
        command = [sys.executable, "-m", module, *arguments]
        peak = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        if peak == "None":
            raise OSError("this system does not report a process's peak memory; run with --no-memory")
        found[variant] = int(peak)
        log(f"  {variant} peak: {found[variant] / 2**20:.0f} MiB")
    return found


def comparison(
    name: str, options: argparse.Namespace, actions: int, seconds: dict[str, list[float]], peak: dict[str, int] | None
) -> dict[str, Any]:
    """One row of the benchmarks that compare the packed forward with separate sequences."""
    medians = {variant: median(times) for variant, times in seconds.items()}
    return {
        "name": name,
        "actions": actions,
        "prompt_tokens": options.prompt_tokens,
        "action_tokens": options.action_tokens,
        "alike": options.alike,
        "tokens": _tokens(options, actions),
        **speedup("speedup", seconds["packed"], seconds["separate"]),
        **(speedup("speedup_over_repeat", seconds["packed"], seconds["repeat"]) if "repeat" in seconds else {}),
        **(speedup("speedup_over_apart", seconds["packed"], seconds["apart"]) if "apart" in seconds else {}),
        "memory_ratio": round(peak["packed"] / peak["separate"], 3) if peak else None,
        "seconds": {variant: round(value, 4) for variant, value in medians.items()},
        "peak_mib": {variant: round(value / 2**20) for variant, value in peak.items()} if peak else None,
        "rows": options.rows,
        "layers": model_config(options).num_hidden_layers,
        "model_shape": options.model_shape,
        "dtype": options.dtype,
        "reference": options.reference,
        "repeats": options.repeats,
        **machine(options.device, options.threads),
    }


def _tokens(options: argparse.Namespace, actions: int) -> dict[str, int]:
    """Tokens of one state, without padding and an encoder-decoder's start tokens."""
    prompt, length, groups = options.prompt_tokens, options.action_tokens, min(actions, _GROUPS)
    tokens = {
        "packed": prompt + groups * options.alike + actions * (length - options.alike),
        "separate": actions * (prompt + length),
        "repeat": actions * (prompt + length),
        "apart": prompt + actions * length,
    }
    return {variant: tokens[variant] for variant in variants(options)}


def speedup(name: str, packed: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Ratio of the medians, and the range of the pairwise ratios."""
    pairs = [theirs / ours for ours, theirs in zip(packed, other, strict=True)]
    return {
        name: round(median(other) / median(packed), 2),
        f"{name}_range": [round(min(pairs), 2), round(max(pairs), 2)],
    }


def machine(device: str, threads: int) -> dict[str, Any]:
    """The machine and the versions a row was measured with."""
    return {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else f"{_cpu_name()}, {threads} thread(s)",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "peft": peft.__version__,
        },
        "commit": _commit(),
    }


def emit(rows: Sequence[dict[str, Any]]) -> None:
    """The result, on stdout."""
    print(json.dumps(rows, indent=2))


def log(message: str) -> None:
    """Progress, on stderr."""
    print(message, file=sys.stderr, flush=True)


def _synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    """The commit, with a mark where tracked files differ from it; outside of git SACGLAM_COMMIT, or `unknown`."""
    named = os.environ.get("SACGLAM_COMMIT")
    if named:
        return named
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()
