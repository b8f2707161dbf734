"""Behavioural cloning by hand, and with the critic by turns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sacglam.algos.imitation import Imitation
from sacglam.clock import PhaseClock
from sacglam.types import Observation, Window


def test_the_loss_by_hand() -> None:
    log_pi_BA = torch.tensor([[0.5, 0.25, 0.25], [0.75, 0.25, 0.0]]).log()
    model: Any = SimpleNamespace(
        prompt=SimpleNamespace(at=lambda row, t: row.goal),
        pack=list,
        tensor=torch.tensor,
        lm=SimpleNamespace(forward=lambda packed, adapter: packed),
        policy=lambda packed: log_pi_BA,
    )
    seen = (Observation("", ("a", "b", "c")),) * 2
    rows = [Window(goal, seen, (action,), (0.0,), True, "real") for goal, action in (("x", 0), ("y", 1))]
    imitation = Imitation(model, PhaseClock())
    batch = imitation.collate(rows)
    assert batch[0] == ["x", "y"]
    loss, metrics = imitation.losses(batch, 0)
    # Taken: ln 0.5 and ln 0.25. Means over the actions: (ln 0.5 + 2 ln 0.25) / 3, and (ln 0.75 + ln 0.25) / 2.
    taken, every = (-0.693147 - 1.386294) / 2, ((-0.693147 - 2 * 1.386294) / 3 + (-0.287682 - 1.386294) / 2) / 2
    assert loss.item() == pytest.approx(-0.9 * taken - 0.1 * every, abs=1e-5)
    assert metrics["cloning_accuracy"].item() == 0.5
