"""One SAC update by the real learner, packed against separate sequences (benchmarks/separate.py).

python -m benchmarks.update --actions 10 --rows 2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks import common
from sacglam.algos.sac import Sac
from sacglam.clock import PhaseClock
from sacglam.config import CriticConfig, SacConfig
from sacglam.learner.backend import TorchBackend
from sacglam.learner.learner import Learner
from sacglam.models.actor_critic import ActorCritic, adapters_needed
from sacglam.models.heads import PolicyHead, QHeads
from sacglam.models.tokens import QueryTokenizer
from sacglam.scoring.packed import PackedScorer
from sacglam.tools.memory import peak_bytes
from sacglam.types import Window

TERMINAL_EVERY = 4  # one row in four ends its episode and needs no bootstrap


def build(variant: str, options: argparse.Namespace, actions: int) -> Callable[[], dict[str, float]]:
    """One update of `variant` on the same steps, with the same initial weights."""
    lm = common.build_lm(variant, options, adapters_needed("shared", "adapter"))
    heads, target_heads = (
        QHeads(lm.hidden_size, CriticConfig(max_actions=actions)).to(options.device) for _ in range(2)
    )
    words = common.word_tokenizer(common.model_config(options).vocab_size)
    config = SacConfig(batch_size=options.rows, warmup_updates=0, micro_batch_size=options.micro_batch)
    tokenizer, policy = QueryTokenizer(words, max_tokens=2048), PolicyHead()
    model = ActorCritic(lm, tokenizer, policy, heads, target_heads, "shared", "adapter")
    clock = PhaseClock()
    learner = Learner(
        model,
        Sac(model, config, clock),
        PackedScorer(lm, tokenizer, policy),
        TorchBackend((model.actor_parameters(), model.critic_parameters()), config.max_grad_norm),
        config,
        1,
        {},
        clock,
    )
    batch = [one_step(row, options, actions) for row in range(options.rows)]
    common.check_lengths(words, batch[0].observations[0], options)
    return lambda: learner.update([batch])[0]


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
    """All variants, run equally often from the same weights, are at the same losses and gradient."""
    found = {variant: run() for variant, run in runs.items()}
    for variant, metrics in found.items():
        common.log(f"  {variant:8} {metrics}")
        for name in ("critic_loss", "entropy", "grad_norm"):
            gap = abs(found["packed"][name] - metrics[name]) / abs(metrics[name])
            assert dtype != "float32" or gap < 1e-2, (variant, name, gap)


def main() -> None:
    parser = common.parser(__doc__ or "")
    parser.add_argument("--micro-batch", type=int, help="rows in one forward and backward, for both; default: all")
    options = parser.parse_args()
    common.prepare(options)
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
