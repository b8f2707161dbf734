"""Damaged model folders: a clear refusal, or a model that scores; no traceback, no hang, and no code runs.

Weights and tokenizers have no checksum: a changed digit in them is another model.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from sacglam.build import build_model
from sacglam.config import override, parse
from sacglam.errors import SacglamError
from sacglam.models.loading import BUILTIN, BUILTIN_T5
from sacglam.prompt import query
from sacglam.types import Observation
from tests.fuzz import COUNTS
from tests.fuzz.common import TINY, fuzzed, refused, within
from tests.fuzz.test_fuzz_folders import CANARY, Damage, apply, damages, remote_code

FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors")


def scored(folder: Path) -> str:
    """Build an agent on the model in `folder`, and ask it for a policy."""
    try:
        model = build_model(override(parse(TINY), [f"model.name={folder}"]))
        [log_pi] = model.log_policy([query("Grasp red cat", Observation("You see: red cat", ("Go to it", "Grasp")))])
    except SacglamError as error:
        return refused(error)
    assert np.isfinite(log_pi).all()
    assert abs(np.exp(log_pi).sum() - 1) < 1e-5
    return "scored"


def check(builtin: Path, damage: list[Damage], code: bool) -> str:
    """Damage a copy of a model and score with it; the outcome."""
    with tempfile.TemporaryDirectory() as place, within(60):
        folder = Path(place) / "model"
        shutil.copytree(builtin, folder)
        if code:
            remote_code(folder)
        for each in damage:
            apply(each, folder)
        try:
            with warnings.catch_warnings(record=True):
                return scored(folder)
        finally:
            assert not CANARY.exists(), "code was executed"


@given(st.randoms(use_true_random=True))
@fuzzed(40)
@pytest.mark.slow
def test_model_folders(rng: Random) -> None:
    builtin, damage = rng.choice((BUILTIN, BUILTIN_T5)), damages(rng, [*FILES, *FILES[:3] * 2])
    note(f"{builtin.name}, {damage}")
    COUNTS[f"model folders: {check(builtin, damage, rng.random() < 0.1)}"] += 1
