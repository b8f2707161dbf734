"""The requests of each strategy, and the scores that it reads from outputs."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest

from sacglam.scoring.vllm.strategies import NextTokenLogprobs, PromptLogprobs, Request, Strategy, TokenIdLogprobs
from tests.unit.scoring.fake_engine import FakeCompletion, FakeOutput, FakeRows

PROMPT = (1, 2, 3)
EDGES = [(5,), (5, 7), (6,)]
# Rows 0 to 3 predict tokens 2, 3, 5 and 7; the action's are rows 2 and 3.
REQUEST = Request(tokens=(1, 2, 3, 5, 7), prompt_tokens=3, edges=((5,), (5, 7)))


def rows(*scores: tuple[int, float]) -> FakeRows:
    found = FakeRows()
    found.add()  # nothing predicts the first token
    for score in scores:
        found.add(score)
    return found


WHOLE = rows((2, -0.2), (3, -0.3), (5, -0.5), (7, -0.7))


def test_prompt_logprobs_sends_one_request_for_each_action() -> None:
    requests = PromptLogprobs().requests(PROMPT, EDGES)
    assert requests == [REQUEST, Request((1, 2, 3, 6), prompt_tokens=3, edges=((6,),))]
    assert [REQUEST.row(edge) for edge in REQUEST.edges] == [2, 3]


@pytest.mark.parametrize(
    ("cached", "expected"), [(0, [-0.5, -0.7]), (2, [-0.5, -0.7]), (3, [None, -0.7]), (4, [None] * 2)]
)
def test_prompt_logprobs_reads_only_rows_past_the_cached_part(cached: int, expected: list[float | None]) -> None:
    found = PromptLogprobs().scores(REQUEST, FakeOutput(cached, WHOLE))
    assert [None if isnan(score) else score for score in found] == expected


def test_prompt_logprobs_counts_from_the_end_where_cached_rows_are_left_out() -> None:
    assert PromptLogprobs().scores(REQUEST, FakeOutput(2, rows((5, -0.5), (7, -0.7)))) == [-0.5, -0.7]
    found = PromptLogprobs().scores(REQUEST, FakeOutput(3, rows((7, -0.7))))
    assert isnan(found[0])
    assert found[1] == -0.7


def test_prompt_logprobs_rejects_a_row_that_names_another_token() -> None:
    found = PromptLogprobs().scores(REQUEST, FakeOutput(0, rows((2, -0.2), (3, -0.3), (31, -0.5), (7, -0.7))))
    assert isnan(found[0])
    assert found[1] == -0.7


@pytest.mark.parametrize("strategy", [PromptLogprobs(), TokenIdLogprobs(), NextTokenLogprobs()])
def test_an_output_without_scores_has_none(strategy: Strategy) -> None:
    assert all(isnan(score) for score in strategy.scores(REQUEST, FakeOutput()))
    assert all(isnan(score) for score in strategy.scores(REQUEST, FakeOutput(outputs=[])))


def test_token_id_logprobs_names_one_token_for_each_row_to_be_scored() -> None:
    parameters = TokenIdLogprobs().parameters(REQUEST)
    assert parameters["prompt_logprob_start"] == 2  # P - 1
    assert parameters["prompt_logprob_token_ids"].tolist() == [[5], [7]]
    later = Request(REQUEST.tokens, prompt_tokens=3, edges=((5, 7),))  # its first token is read with another action
    assert TokenIdLogprobs().parameters(later)["prompt_logprob_start"] == 3
    assert TokenIdLogprobs().parameters(later)["prompt_logprob_token_ids"].tolist() == [[7]]


def test_token_id_logprobs_reads_its_rows_and_rejects_another_number_of_them() -> None:
    found = TokenIdLogprobs().scores(
        REQUEST, FakeOutput(prompt_token_id_logprobs=np.array([[-0.5], [-0.75]], dtype=np.float32))
    )
    assert found == [-0.5, -0.75]
    short = TokenIdLogprobs().scores(REQUEST, FakeOutput(prompt_token_id_logprobs=np.array([[-0.5]], dtype=np.float32)))
    assert all(isnan(score) for score in short)


def test_next_token_logprobs_sends_one_request_for_each_inner_node() -> None:
    requests = NextTokenLogprobs().requests(PROMPT, EDGES)
    assert [(request.tokens, request.edges) for request in requests] == [
        ((1, 2, 3), ((5,), (6,))),
        ((1, 2, 3, 5), ((5, 7),)),
    ]
    assert [NextTokenLogprobs().parameters(request) for request in requests] == [
        {"logprob_token_ids": [5, 6]},
        {"logprob_token_ids": [7]},
    ]


def test_next_token_logprobs_requests_at_most_128_children_at_once() -> None:
    requests = NextTokenLogprobs().requests(PROMPT, [(token,) for token in range(300)])
    assert [len(request.edges) for request in requests] == [128, 128, 44]
    assert {request.tokens for request in requests} == {PROMPT}


def test_next_token_logprobs_finds_its_tokens_next_to_the_sampled_one() -> None:
    sampled_first = FakeRows()
    sampled_first.add((41, -0.1), (5, -2.0), (6, -3.0))
    request = NextTokenLogprobs().requests(PROMPT, EDGES)[0]
    assert NextTokenLogprobs().scores(request, FakeOutput(outputs=[FakeCompletion(sampled_first)])) == [-2.0, -3.0]
    one_lacks = FakeRows()
    one_lacks.add((41, -0.1), (5, -2.0))
    assert isnan(NextTokenLogprobs().scores(request, FakeOutput(outputs=[FakeCompletion(one_lacks)]))[1])
