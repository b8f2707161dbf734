"""What each strategy asks, and what of an answer it takes for a score."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest

from sacglam.scoring.vllm.strategies import Ask, NextTokenLogprobs, PromptLogprobs, TokenIdLogprobs
from tests.unit.scoring.fake_engine import FakeAnswer, FakeCompletion, FakeRows

PROMPT = (1, 2, 3)
EDGES = [(5,), (5, 7), (6,)]
# Rows 0 to 3 predict tokens 2, 3, 5 and 7; the action's are rows 2 and 3.
ASK = Ask(state=0, tokens=(1, 2, 3, 5, 7), prompt=3, gives=((5,), (5, 7)))


def rows(*scores: tuple[int, float]) -> FakeRows:
    found = FakeRows()
    found.add()  # nothing predicts the first token
    for score in scores:
        found.add(score)
    return found


WHOLE = rows((2, -0.2), (3, -0.3), (5, -0.5), (7, -0.7))


def test_prompt_rows_asks_once_for_each_action() -> None:
    asks = PromptLogprobs().asks(4, PROMPT, EDGES)
    assert [(ask.state, ask.tokens, ask.gives) for ask in asks] == [
        (4, (1, 2, 3, 5, 7), ((5,), (5, 7))),
        (4, (1, 2, 3, 6), ((6,),)),
    ]
    assert [ASK.row(edge) for edge in ASK.gives] == [2, 3]


@pytest.mark.parametrize(
    ("cached", "expected"), [(0, [-0.5, -0.7]), (2, [-0.5, -0.7]), (3, [None, -0.7]), (4, [None] * 2)]
)
def test_prompt_rows_takes_only_rows_past_the_cached_part(cached: int, expected: list[float | None]) -> None:
    found = PromptLogprobs().read(ASK, FakeAnswer(cached, WHOLE))
    assert [None if isnan(score) else score for score in found] == expected


def test_prompt_rows_counts_from_the_end_where_cached_rows_are_left_out() -> None:
    assert PromptLogprobs().read(ASK, FakeAnswer(2, rows((5, -0.5), (7, -0.7)))) == [-0.5, -0.7]
    found = PromptLogprobs().read(ASK, FakeAnswer(3, rows((7, -0.7))))
    assert isnan(found[0])
    assert found[1] == -0.7


def test_prompt_rows_trusts_no_row_that_names_another_token() -> None:
    found = PromptLogprobs().read(ASK, FakeAnswer(0, rows((2, -0.2), (3, -0.3), (31, -0.5), (7, -0.7))))
    assert isnan(found[0])
    assert found[1] == -0.7


@pytest.mark.parametrize("strategy", [PromptLogprobs(), TokenIdLogprobs(), NextTokenLogprobs()])
def test_an_answer_without_scores_gives_none(strategy: PromptLogprobs | TokenIdLogprobs | NextTokenLogprobs) -> None:
    assert all(isnan(score) for score in strategy.read(ASK, FakeAnswer()))
    assert all(isnan(score) for score in strategy.read(ASK, FakeAnswer(outputs=[])))


def test_token_rows_names_one_token_for_each_row_from_the_first_that_counts() -> None:
    parameters = TokenIdLogprobs().parameters(ASK)
    assert parameters["prompt_logprob_start"] == 2  # P - 1
    assert parameters["prompt_logprob_token_ids"].tolist() == [[5], [7]]
    later = Ask(state=0, tokens=ASK.tokens, prompt=3, gives=((5, 7),))  # its first token is another action's, too
    assert TokenIdLogprobs().parameters(later)["prompt_logprob_start"] == 3
    assert TokenIdLogprobs().parameters(later)["prompt_logprob_token_ids"].tolist() == [[7]]


def test_token_rows_reads_its_rows_and_refuses_another_number_of_them() -> None:
    found = TokenIdLogprobs().read(
        ASK, FakeAnswer(prompt_token_id_logprobs=np.array([[-0.5], [-0.75]], dtype=np.float32))
    )
    assert found == [-0.5, -0.75]
    short = TokenIdLogprobs().read(ASK, FakeAnswer(prompt_token_id_logprobs=np.array([[-0.5]], dtype=np.float32)))
    assert all(isnan(score) for score in short)


def test_trie_nodes_asks_once_for_each_inner_node() -> None:
    asks = NextTokenLogprobs().asks(0, PROMPT, EDGES)
    assert [(ask.tokens, ask.gives) for ask in asks] == [((1, 2, 3), ((5,), (6,))), ((1, 2, 3, 5), ((5, 7),))]
    assert [NextTokenLogprobs().parameters(ask) for ask in asks] == [
        {"logprob_token_ids": [5, 6]},
        {"logprob_token_ids": [7]},
    ]


def test_trie_nodes_asks_for_at_most_128_children_at_once() -> None:
    asks = NextTokenLogprobs().asks(0, PROMPT, [(token,) for token in range(300)])
    assert [len(ask.gives) for ask in asks] == [128, 128, 44]
    assert {ask.tokens for ask in asks} == {PROMPT}


def test_trie_nodes_finds_its_tokens_beside_the_one_that_was_sampled() -> None:
    sampled_first = FakeRows()
    sampled_first.add((41, -0.1), (5, -2.0), (6, -3.0))
    ask = NextTokenLogprobs().asks(0, PROMPT, EDGES)[0]
    assert NextTokenLogprobs().read(ask, FakeAnswer(outputs=[FakeCompletion(sampled_first)])) == [-2.0, -3.0]
    one_lacks = FakeRows()
    one_lacks.add((41, -0.1), (5, -2.0))
    assert isnan(NextTokenLogprobs().read(ask, FakeAnswer(outputs=[FakeCompletion(one_lacks)]))[1])
