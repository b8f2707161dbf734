"""The forward pass alone, as a rollout step needs it: the policy at a batch of states, packed against separate.

python -m benchmarks.scoring --actions 10 50 --rows 2
python -m benchmarks.scoring --model-shape t5-base --rows 1
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from benchmarks import common
from sacglam.config.sections import CriticConfig
from sacglam.memory import peak_bytes
from sacglam.models.actor_critic import ActorValue
from sacglam.models.heads import PolicyHead
from sacglam.models.packed_lm import ACTOR
from sacglam.models.tokens import QueryTokenizer
from sacglam.prompt import query
from sacglam.types import LogPolicy


def build(variant: str, options: argparse.Namespace, actions: int) -> Callable[[], list[LogPolicy]]:
    """One scoring pass of `variant` over the same states."""
    lm = common.build_lm(variant, options, [ACTOR])
    words = common.word_tokenizer(common.model_config(options).vocab_size)
    states = [common.observation(row, options, actions) for row in range(options.rows)]
    common.check_lengths(words, states[0], options)
    scorer = ActorValue(lm, QueryTokenizer(words, max_tokens=2048), PolicyHead(), CriticConfig())
    queries = [query("w0", state) for state in states]
    return lambda: scorer.log_policy(queries)


def check_equal(runs: dict[str, Callable[[], list[LogPolicy]]], dtype: str) -> None:
    """All variants compute the same policy."""
    packed, *others = (np.stack(run()) for run in runs.values())
    gap = max(np.abs(packed - other).max() for other in others)
    common.log(f"  largest difference of log pi: {gap:.2g}")
    assert dtype != "float32" or gap < 1e-4, gap


def main() -> None:
    options = common.parser(__doc__ or "").parse_args()
    common.prepare(options)
    if options.peak_of:
        print(peak_bytes(build(options.peak_of, options, options.actions[0]), options.device))
        return
    rows = []
    for actions in options.actions:
        common.log(f"scoring, {actions} actions")
        peak = common.peaks("benchmarks.scoring", options, actions) if options.memory else None
        runs = {variant: build(variant, options, actions) for variant in common.variants(options)}
        seconds = common.interleaved(runs, options.repeats, options.device)
        check_equal(runs, options.dtype)
        rows.append(common.comparison("scoring", options, actions, seconds, peak))
    common.emit(rows)


if __name__ == "__main__":
    main()
