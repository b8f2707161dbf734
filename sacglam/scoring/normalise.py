"""From the log-probabilities of one state's actions to its policy, for scorers that hold no tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sacglam.scoring.base import LogPolicy


def log_policy(
    log_probs_A: Sequence[float],
    lengths_A: Sequence[int],
    *,
    length_normalised: bool = False,
    temperature: float = 1.0,
) -> LogPolicy:
    """log softmax over the candidates of their log-probabilities (paper, Eq. 2), (A,) float32: what `PolicyHead` does.

    `log_probs_A` are sums over each action's tokens in nats, `lengths_A` the numbers of these tokens.
    """
    score_A: LogPolicy = np.asarray(log_probs_A, dtype=np.float32)
    if length_normalised:
        score_A = np.divide(score_A, lengths_A, dtype=np.float32)
    score_A = np.divide(score_A, temperature, dtype=np.float32)
    shifted_A = score_A - score_A.max()
    log_pi_A: LogPolicy = shifted_A - np.log(np.exp(shifted_A).sum())
    return log_pi_A
