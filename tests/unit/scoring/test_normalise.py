"""The policy from log-probabilities without tensors: the same as `PolicyHead`."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch

from sacglam.models.base import LMOutput
from sacglam.models.policy_head import PolicyHead
from sacglam.scoring.normalise import log_policy


def test_probabilities_of_one_and_three_become_quarters() -> None:
    assert log_policy([log(0.01), log(0.03)], [1, 2]).tolist() == pytest.approx([log(0.25), log(0.75)])


def test_length_normalised_scores_are_means_over_tokens() -> None:
    # -2 / 1 and -2 / 2: e^-2 against e^-1.
    expected = [log(1 / (1 + np.e)), log(np.e / (1 + np.e))]
    assert log_policy([-2.0, -2.0], [1, 2], length_normalised=True).tolist() == pytest.approx(expected)


def test_temperature_divides_scores() -> None:
    assert log_policy([log(1.0), log(9.0)], [1, 1], temperature=2.0).tolist() == pytest.approx([log(0.25), log(0.75)])


def test_a_single_action_is_certain() -> None:
    assert log_policy([-1234.5], [3]).tolist() == [0.0]


@pytest.mark.parametrize("length_normalised", [False, True])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 7.0])
def test_it_is_what_the_policy_head_gives(length_normalised: bool, temperature: float) -> None:
    rng = np.random.default_rng(0)
    counts_B = rng.integers(1, 12, size=200)
    log_probs_BA = -rng.gamma(2.0, 8.0, size=(200, 11)).astype(np.float32)
    lengths_BA = rng.integers(1, 7, size=(200, 11))
    actions_BA = torch.from_numpy(np.arange(11) < counts_B[:, None])
    nothing = torch.zeros(0)
    output = LMOutput(torch.from_numpy(log_probs_BA), nothing, nothing, actions_BA, torch.from_numpy(lengths_BA))
    expected_BA = PolicyHead(length_normalised, temperature)(output).numpy()
    for b, count in enumerate(counts_B):
        got_A = log_policy(
            log_probs_BA[b, :count].tolist(),
            lengths_BA[b, :count].tolist(),
            length_normalised=length_normalised,
            temperature=temperature,
        )
        assert got_A.dtype == np.float32
        np.testing.assert_allclose(got_A, expected_BA[b, :count], rtol=1e-6, atol=1e-5)
