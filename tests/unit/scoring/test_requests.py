"""Requests until every score is valid, against an engine with a cache and outputs like vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from sacglam.errors import EngineError
from sacglam.models.tokens import TokenisedQuery
from sacglam.scoring.vllm.requests import ATTEMPTS, Counts, RequestScorer, Send
from sacglam.scoring.vllm.strategies import NextTokenLogprobs, Prefix, PromptLogprobs, Strategy, TokenIdLogprobs
from tests.unit.scoring.fake_engine import BLOCK, FakeEngine, FakeOutput, FakeRows, total

STRATEGIES = [PromptLogprobs(), TokenIdLogprobs(), NextTokenLogprobs()]


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
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
def test_every_strategy_scores_alike_from_cold_and_warm_caches(strategy: Strategy, shortened: bool) -> None:
    scorer = RequestScorer(FakeEngine(shortened), strategy, BLOCK, max_tokens=100)
    queries = ragged(0, 200)
    for _ in range(3):
        assert_scores(scorer.log_probs(queries), queries)
    assert scorer.counts.missing == 0
    assert scorer.counts.actions == 3 * sum(len(q.actions) for q in queries)


def test_the_prompt_is_computed_once_for_all_actions() -> None:
    # P = 6, blocks of 4: the second and third action find 4 tokens and compute 2 + 2.
    scorer = RequestScorer(FakeEngine(), PromptLogprobs(), BLOCK, max_tokens=100)
    queries = [state(range(10, 16), [1, 2], [3, 4], [5, 6])]
    assert_scores(scorer.log_probs(queries), queries)
    assert scorer.counts == Counts(
        states=1, actions=3, requests=3, tokens_sent=24, tokens_computed=8 + 4 + 4, retried=0, missing=0
    )


def test_a_prompt_that_fills_its_blocks_has_its_first_tokens_scored_at_its_node() -> None:
    # P = 8: the node computes 8, each action finds these 8 and computes its own 2.
    engine = FakeEngine()
    scorer = RequestScorer(engine, PromptLogprobs(), BLOCK, max_tokens=100)
    queries = [state(range(10, 18), [1, 2], [3, 4], [5])]
    assert_scores(scorer.log_probs(queries), queries)
    assert [len(request.tokens) for request in engine.sent] == [8, 10, 10]
    assert scorer.counts.tokens_computed == 8 + 2 + 2
    assert scorer.counts.retried == 0


@pytest.mark.parametrize(
    "strategy", [PromptLogprobs(), TokenIdLogprobs()], ids=lambda strategy: type(strategy).__name__
)
def test_tokens_predicted_by_cached_rows_are_scored_at_their_nodes(strategy: Strategy) -> None:
    # P = 6, L = 4: the second time 8 tokens are cached. Rows 5 to 7 of them predict the first three tokens.
    engine = FakeEngine(shortened=True)
    scorer = RequestScorer(engine, strategy, BLOCK, max_tokens=100)
    queries = [state(range(10, 16), [1, 2, 3, 4])]
    scorer.log_probs(queries)
    assert scorer.counts.retried == 0
    assert_scores(scorer.log_probs(queries), queries)
    assert (scorer.counts.retried, scorer.counts.missing) == (3 if isinstance(strategy, PromptLogprobs) else 4, 0)
    assert all("logprob_token_ids" in request.parameters for request in engine.sent[2:])
    assert not any(request.parameters["skip_reading_prefix_cache"] for request in engine.sent)


def test_the_last_token_of_the_longest_sequence_is_scored_at_its_node() -> None:
    # The engine generates one token, so it takes requests of 8 tokens for a model with 9 positions.
    engine = FakeEngine()
    queries = [state([9, 8, 7, 6, 5, 4, 3], [1, 2], [1])]
    assert_scores(RequestScorer(engine, PromptLogprobs(), BLOCK, max_tokens=9).log_probs(queries), queries)
    assert max(len(request.tokens) for request in engine.sent) == 8


def _none(output: FakeOutput) -> None:
    output.prompt_logprobs = None
    output.outputs = []


def _of(value: float) -> Callable[[FakeOutput], None]:
    def change(output: FakeOutput) -> None:
        for rows in (output.prompt_logprobs, output.outputs[0].logprobs):
            if isinstance(rows, FakeRows):
                rows.logprobs = [value] * len(rows.logprobs)

    return change


FAULTS = [_none, _of(nan), _of(-inf), _of(7.0)]


def faulty(engine: FakeEngine, fault: Callable[[FakeOutput], None], batches: int) -> Send:
    """`engine`, whose last output in each of the first `batches` calls has a fault."""
    left = iter(range(batches))

    def send(prompts: Sequence[Prefix], parameters: Sequence[Mapping[str, Any]]) -> list[FakeOutput]:
        outputs = engine(prompts, parameters)
        if next(left, None) is not None:
            fault(outputs[-1])
        return outputs

    return send


@pytest.mark.parametrize("fault", FAULTS, ids=["none", "nan", "-inf", "positive"])
@pytest.mark.parametrize("faults", range(1, ATTEMPTS))
def test_an_invalid_score_is_requested_again(fault: Callable[[FakeOutput], None], faults: int) -> None:
    engine = FakeEngine()
    queries = [state(range(10, 16), [1, 2], [3])]
    scorer = RequestScorer(faulty(engine, fault, faults), PromptLogprobs(), BLOCK, max_tokens=100)
    assert_scores(scorer.log_probs(queries), queries)
    assert scorer.counts.missing >= faults
    # From the third attempt on the cache is not read.
    assert engine.sent[-1].parameters["skip_reading_prefix_cache"] is (faults >= 2)


@pytest.mark.parametrize("fault", FAULTS, ids=["none", "nan", "-inf", "positive"])
def test_an_engine_without_valid_scores_is_an_error(fault: Callable[[FakeOutput], None]) -> None:
    engine = FakeEngine()

    def send(prompts: Sequence[Prefix], parameters: Sequence[Mapping[str, Any]]) -> list[FakeOutput]:
        outputs = engine(prompts, parameters)
        for output in outputs:
            fault(output)
        return outputs

    with pytest.raises(EngineError, match=r"3 had none.*4 attempts.*token 1 after 6 tokens.*restart"):
        RequestScorer(send, PromptLogprobs(), BLOCK, max_tokens=100).log_probs([state(range(10, 16), [1, 2], [3])])
