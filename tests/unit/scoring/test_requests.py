"""Asking until every score is there, against an engine whose cache and answers are as vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan

import numpy as np
import pytest

from sacglam.errors import EngineError
from sacglam.models.tokens import TokenisedQuery
from sacglam.scoring.vllm.requests import TRIES, Counts, Request, Requests
from sacglam.scoring.vllm.strategies import NextTokenLogprobs, PromptLogprobs, Strategy, TokenIdLogprobs
from tests.unit.scoring.fake_engine import BLOCK, FakeAnswer, FakeEngine, FakeRows, total

WAYS = [PromptLogprobs(), TokenIdLogprobs(), NextTokenLogprobs()]


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


@pytest.mark.parametrize("shortened", [False, True])
@pytest.mark.parametrize("strategy", WAYS, ids=lambda strategy: type(strategy).__name__)
def test_every_way_gives_the_same_scores_from_cold_and_warm_caches(strategy: Strategy, shortened: bool) -> None:
    requester = Requests(FakeEngine(shortened), strategy, BLOCK, max_tokens=100)
    queries = ragged(0, 200)
    for _ in range(3):
        assert_scores(requester.log_probs(queries), queries)
    assert requester.counts.missing == 0
    assert requester.counts.actions == 3 * sum(len(q.actions) for q in queries)


def test_the_prompt_is_computed_once_for_all_actions() -> None:
    # P = 6, blocks of 4: the second and third action find 4 tokens and compute 2 + 2.
    requester = Requests(FakeEngine(), PromptLogprobs(), BLOCK, max_tokens=100)
    queries = [state(range(10, 16), [1, 2], [3, 4], [5, 6])]
    assert_scores(requester.log_probs(queries), queries)
    assert requester.counts == Counts(
        states=1, actions=3, requests=3, tokens_asked=24, tokens_computed=8 + 4 + 4, reasked=0, missing=0
    )


def test_a_prompt_that_fills_its_blocks_has_its_first_tokens_asked_at_its_node() -> None:
    # P = 8: the node computes 8, each action finds these 8 and computes its own 2.
    engine = FakeEngine()
    requester = Requests(engine, PromptLogprobs(), BLOCK, max_tokens=100)
    queries = [state(range(10, 18), [1, 2], [3, 4], [5])]
    assert_scores(requester.log_probs(queries), queries)
    assert [len(request.tokens) for request in engine.sent] == [8, 10, 10]
    assert requester.counts.tokens_computed == 8 + 2 + 2
    assert requester.counts.reasked == 0


@pytest.mark.parametrize(
    "strategy", [PromptLogprobs(), TokenIdLogprobs()], ids=lambda strategy: type(strategy).__name__
)
def test_rows_that_the_cache_swallowed_are_asked_at_their_nodes(strategy: Strategy) -> None:
    # P = 6, L = 4: the second time 8 tokens are cached, so rows 5 to 7 are lost, which predict the first three tokens.
    engine = FakeEngine(shortened=True)
    requester = Requests(engine, strategy, BLOCK, max_tokens=100)
    queries = [state(range(10, 16), [1, 2, 3, 4])]
    requester.log_probs(queries)
    assert requester.counts.reasked == 0
    assert_scores(requester.log_probs(queries), queries)
    assert (requester.counts.reasked, requester.counts.missing) == (3 if isinstance(strategy, PromptLogprobs) else 4, 0)
    assert all("logprob_token_ids" in request.parameters for request in engine.sent[2:])
    assert not any(request.parameters["skip_reading_prefix_cache"] for request in engine.sent)


def test_a_sequence_as_long_as_the_model_goes_has_its_last_token_asked_at_its_node() -> None:
    # An engine makes one token more, so that it takes requests of 8 tokens where the model has 9 positions.
    engine = FakeEngine()
    queries = [state([9, 8, 7, 6, 5, 4, 3], [1, 2], [1])]
    assert_scores(Requests(engine, PromptLogprobs(), BLOCK, max_tokens=9).log_probs(queries), queries)
    assert max(len(request.tokens) for request in engine.sent) == 8


def _none(answer: FakeAnswer) -> None:
    answer.prompt_logprobs = None
    answer.outputs = []


def _of(value: float) -> Callable[[FakeAnswer], None]:
    def change(answer: FakeAnswer) -> None:
        for rows in (answer.prompt_logprobs, answer.outputs[0].logprobs):
            if isinstance(rows, FakeRows):
                rows.logprobs = [value] * len(rows.logprobs)

    return change


FAULTS = [_none, _of(nan), _of(-inf), _of(7.0)]


@pytest.mark.parametrize("fault", FAULTS, ids=["none", "nan", "-inf", "positive"])
@pytest.mark.parametrize("tries", range(1, TRIES))
def test_what_is_no_score_is_asked_again(fault: Callable[[FakeAnswer], None], tries: int) -> None:
    engine, calls = FakeEngine(), 0

    def send(requests: Sequence[Request]) -> list[FakeAnswer]:
        nonlocal calls
        calls += 1
        answers = engine(requests)
        if calls <= tries:
            fault(answers[-1])
        return answers

    queries = [state(range(10, 16), [1, 2], [3])]
    requester = Requests(send, PromptLogprobs(), BLOCK, max_tokens=100)
    assert_scores(requester.log_probs(queries), queries)
    assert calls == tries + 1
    assert requester.counts.missing >= tries
    # From the third try on the cache is not read.
    assert engine.sent[-1].parameters["skip_reading_prefix_cache"] is (calls > 2)


@pytest.mark.parametrize("fault", FAULTS, ids=["none", "nan", "-inf", "positive"])
def test_an_engine_that_never_gives_a_score_is_an_error(fault: Callable[[FakeAnswer], None]) -> None:
    engine, calls = FakeEngine(), 0

    def send(requests: Sequence[Request]) -> list[FakeAnswer]:
        nonlocal calls
        calls += 1
        answers = engine(requests)
        for answer in answers:
            fault(answer)
        return answers

    with pytest.raises(EngineError, match=r"3 came without one.*4 tries.*token 1 after 6 tokens.*restart"):
        Requests(send, PromptLogprobs(), BLOCK, max_tokens=100).log_probs([state(range(10, 16), [1, 2], [3])])
    assert calls == TRIES
