"""The requests for the scores of actions, against an engine with a cache and outputs like vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from benchmarks.engine import Counted
from sacglam.errors import EngineError
from sacglam.models.tokens import TokenisedQuery
from sacglam.scoring.vllm.requests import Tokens, log_probs
from tests.unit.scoring.fake_engine import FakeEngine, FakeOutput, total


def state(prompt: Sequence[int], *actions: Sequence[int]) -> TokenisedQuery:
    return TokenisedQuery(np.array(prompt), tuple(np.array(action) for action in actions))


def ragged(seed: int, number: int) -> list[TokenisedQuery]:
    rng = np.random.default_rng(seed)
    return [
        state(
            rng.integers(3, size=rng.integers(1, 15)),
            *(rng.integers(3, size=rng.integers(1, 7)) for _ in range(rng.integers(1, 6))),
        )
        for _ in range(number)
    ]


def expected(queries: Sequence[TokenisedQuery]) -> list[list[float]]:
    return [[total(q.prompt.tolist(), action.tolist()) for action in q.actions] for q in queries]


def assert_scores(got: list[list[float]], queries: Sequence[TokenisedQuery]) -> None:
    for row, right in zip(got, expected(queries), strict=True):
        assert row == pytest.approx(right, abs=1e-5)


def test_scores_are_the_same_from_a_cold_and_a_warm_cache() -> None:
    send, queries = FakeEngine(), ragged(0, 200)
    for _ in range(3):
        assert_scores(log_probs(send, queries), queries)


def test_each_inner_node_of_the_actions_is_one_request_and_the_prompt_is_computed_once() -> None:
    # P = 6, blocks of 4: the node of (1,) finds 4 of its 7 tokens. (5,) is a leaf.
    engine = FakeEngine()
    send = Counted(engine)
    queries = [state(range(10, 16), [1, 2], [1, 3], [5])]
    assert_scores(log_probs(send, queries), queries)
    sent = [(len(request.tokens), request.parameters["logprob_token_ids"]) for request in engine.sent]
    assert sent == [(6, [1, 5]), (7, [2, 3])]
    assert (send.requests, send.tokens_computed) == (2, 6 + 3)


def test_states_that_occur_twice_are_requested_once() -> None:
    engine = FakeEngine()
    queries = [state(range(10, 16), [1], [2])] * 2
    assert_scores(log_probs(engine, queries), queries)
    assert len(engine.sent) == 1


def test_at_most_128_tokens_are_requested_at_once() -> None:
    engine = FakeEngine()
    queries = [state(range(3), *([token] for token in range(300)))]
    assert_scores(log_probs(engine, queries), queries)
    assert [len(request.parameters["logprob_token_ids"]) for request in engine.sent] == [128, 128, 44]


def _none(output: FakeOutput) -> None:
    output.outputs = []


def _other_tokens(output: FakeOutput) -> None:
    rows = output.outputs[0].logprobs
    assert rows
    rows.token_ids = [token + 1000 for token in rows.token_ids]


def _of(value: float) -> Callable[[FakeOutput], None]:
    def change(output: FakeOutput) -> None:
        rows = output.outputs[0].logprobs
        assert rows
        rows.logprobs = [value] * len(rows.logprobs)

    return change


FAULTS = {"none": _none, "other tokens": _other_tokens, "nan": _of(nan), "-inf": _of(-inf), "positive": _of(7.0)}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_an_engine_without_valid_scores_is_an_error(fault: Callable[[FakeOutput], None]) -> None:
    engine = FakeEngine()

    def send(prompts: Sequence[Tokens], parameters: Sequence[Mapping[str, Any]]) -> list[FakeOutput]:
        outputs = engine(prompts, parameters)
        for output in outputs:
            fault(output)
        return outputs

    with pytest.raises(EngineError, match=r"3 had none.*token 1 after 6 tokens.*--resume"):
        log_probs(send, [state(range(10, 16), [1, 2], [3])])
