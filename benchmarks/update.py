"""One SAC update by the real learner, packed against separate sequences (benchmarks/separate.py).

python -m benchmarks.update --actions 10 --rows 2

With `--lean LAYERS`: adapters on the last layers, with the output of the layers below cached, against adapters on all:

python -m benchmarks.update --lean 10 --rows 16 --prompt-tokens 35 --actions 4
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks import common
from sacglam.algos.sac import Sac, SacConfig
from sacglam.clock import PhaseClock
from sacglam.config.sections import CriticConfig
from sacglam.learner.backend import Backend
from sacglam.learner.learner import Learner
from sacglam.memory import peak_bytes
from sacglam.models.actor_critic import ActorCritic
from sacglam.models.heads import PolicyHead
from sacglam.models.layers import FrozenLayers
from sacglam.models.packed_lm import PackedLM
from sacglam.models.tokens import QueryTokenizer
from sacglam.prompt import query
from sacglam.types import Window

LEAN = ("all", "last", "kept")
CLOCKS = {"seconds": time.perf_counter, "cpu_seconds": time.process_time}
TERMINAL_EVERY = 4  # one row in four ends its episode and needs no bootstrap


ADAPTERS = ActorCritic.adapters(CriticConfig())


def build(variant: str, options: argparse.Namespace, actions: int) -> Callable[[], dict[str, float]]:
    """One update of `variant` on the same steps, with the same initial weights."""
    learner, batch = build_learner(common.build_lm(variant, options, ADAPTERS), options, actions)
    return lambda: learner.learn([batch]).metrics[0]


def build_learner(lm: PackedLM, options: argparse.Namespace, actions: int) -> tuple[Learner, list[Window]]:
    """A learner of `lm`, and the steps of an update."""
    words = common.word_tokenizer(common.model_config(options).vocab_size)
    config = SacConfig(batch_size=options.rows, warmup_updates=0, micro_batch_size=options.micro_batch)
    tokenizer, policy = QueryTokenizer(words, max_tokens=2048), PolicyHead()
    model = ActorCritic(lm, tokenizer, policy, CriticConfig())
    clock = PhaseClock()
    learner = Learner(
        model,
        Sac(model, config, 1, np.random.default_rng(0), clock),
        Backend((model.actor_parameters(), model.critic_parameters()), config.max_grad_norm),
        config,
        1,
        clock,
    )
    batch = [one_step(row, options, actions) for row in range(options.rows)]
    common.check_lengths(words, batch[0].observations[0], options)
    return learner, batch


def one_step(row: int, options: argparse.Namespace, actions: int) -> Window:
    """A window of one step between two states of the lengths asked for."""
    return Window(
        goal="w0",
        observations=tuple(common.observation(2 * row + i, options, actions) for i in range(2)),
        actions=(row % actions,),
        rewards=(float(row % 2),),
        terminated=row % TERMINAL_EVERY == TERMINAL_EVERY - 1,
        source="real",
    )


def check_equal(runs: dict[str, Callable[[], dict[str, float]]], dtype: str) -> None:
    """Check that all variants, run equally often from the same weights, reach the same losses and gradient."""
    found = {variant: run() for variant, run in runs.items()}
    for variant, metrics in found.items():
        common.log(f"  {variant:8} {metrics}")
        for name in ("critic_loss", "entropy", "grad_norm"):
            gap = abs(found["packed"][name] - metrics[name]) / abs(metrics[name])
            assert dtype != "float32" or gap < 1e-2, (variant, name, gap)


def lean(options: argparse.Namespace, actions: int) -> dict[str, Any]:
    """An update with adapters on the last layers against one with adapters on all.

    `all`: on all layers; `last`: on the last ones; `kept`: the same, all states seen before; `new`: none of them.
    """
    lms = {
        name: common.build_lm("packed", options, ADAPTERS, options.lean if n else None) for n, name in enumerate(LEAN)
    }
    learners = {name: build_learner(lm, options, actions) for name, lm in lms.items()}
    kept = lms["kept"]
    assert isinstance(kept, PackedLM)

    def update(name: str, fresh: bool = False) -> None:
        learner, batch = learners[name]
        if fresh:
            kept.frozen = FrozenLayers(kept.architecture, options.cache_mib << 20)
        learner.learn([batch])

    runs = {name: partial(update, name) for name in LEAN} | {"new": partial(update, "kept", fresh=True)}
    kept.frozen = FrozenLayers(kept.architecture, options.cache_mib << 20)
    seconds = common.interleaved(runs, options.repeats, options.device, CLOCKS[_clock(options)])
    figures = {
        **common.speedup("speedup", seconds["kept"], seconds["all"]),
        **common.speedup("speedup_new", seconds["new"], seconds["all"]),
        **common.speedup("speedup_last", seconds["last"], seconds["all"]),
        "gradient_gap": gradient_gap(learners["last"], learners["kept"]),
        "cache_mib": options.cache_mib,
        "filling_mib": filling_mib(kept, options, actions) if options.memory else None,
        "adapted_layers": options.lean,
    }
    return {
        "name": "lean update",
        **figures,
        "actions": actions,
        "prompt_tokens": options.prompt_tokens,
        "action_tokens": options.action_tokens,
        _clock(options): {name: round(median(times), 3) for name, times in seconds.items()},
        "rows": options.rows,
        "layers": common.model_config(options).num_hidden_layers,
        "model_shape": options.model_shape,
        "dtype": options.dtype,
        "repeats": options.repeats,
        **common.machine(options.device, options.threads),
    }


def _clock(options: argparse.Namespace) -> str:
    """A CPU may be busy with other jobs; a GPU computes outside this process's CPU time."""
    return "seconds" if options.device.startswith("cuda") else "cpu_seconds"


def gradient_gap(plain: tuple[Learner, list[Window]], kept: tuple[Learner, list[Window]]) -> float:
    """The largest gap between the same adapter's gradients of an update, relative to the norm of each."""
    kept[0].load_state(*plain[0].state())
    found = []
    for learner, batch in (plain, kept):
        learner._gradient(batch, learner.config.micro_batch_rows or len(batch), learner.algorithm, learner.updates)
        found.append([p.grad for p in learner.model.actor_parameters() if p.grad is not None])
    return max(((k - p).norm() / p.norm()).item() for p, k in zip(*found, strict=True))


def filling_mib(lm: PackedLM, options: argparse.Namespace, actions: int) -> float | None:
    """Memory that half as many states again as there is room for take at their peak, with what one of them computes."""
    words = QueryTokenizer(common.word_tokenizer(common.model_config(options).vocab_size), max_tokens=2048)
    state_bytes = (options.prompt_tokens + actions * options.action_tokens) * lm.hidden_size * 4
    lm.frozen = FrozenLayers(lm.architecture, options.cache_mib << 20)

    def fill() -> None:
        for row in range(3 * (options.cache_mib << 20) // state_bytes // 2):
            lm.pack(words([query("w0", common.observation(row, options, actions))]))

    peak = peak_bytes(fill, options.device)
    return None if peak is None else round(peak / 2**20, 1)


def main() -> None:
    parser = common.parser(__doc__ or "")
    parser.add_argument("--micro-batch", type=int, help="rows in one forward and backward, for both; default: all")
    parser.add_argument("--lean", type=int, metavar="LAYERS", help="compare adapters on this many final layers instead")
    parser.add_argument("--cache-mib", type=int, default=32, help="with --lean: memory for hidden states")
    options = parser.parse_args()
    common.prepare(options)
    if options.lean:
        common.emit([lean(options, actions) for actions in options.actions])
        return
    if options.peak_of:
        print(peak_bytes(build(options.peak_of, options, options.actions[0]), options.device))
        return
    rows = []
    for actions in options.actions:
        common.log(f"update, {actions} actions")
        peak = common.peaks("benchmarks.update", options, actions) if options.memory else None
        runs = {variant: build(variant, options, actions) for variant in common.variants(options)}
        seconds = common.interleaved(runs, options.repeats, options.device)
        check_equal(runs, options.dtype)
        rows.append(common.comparison("update", options, actions, seconds, peak))
    common.emit(rows)


if __name__ == "__main__":
    main()
