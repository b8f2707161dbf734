"""Log-probabilities of chosen tokens: against a plain log-softmax, value and gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sacglam.models import logprobs
from sacglam.models.logprobs import SelectedLogProbs
from sacglam.models.tokens import TokenisedQuery
from tests.unit.models.reference import VOCABULARY, tiny_lm

V, H, R = 11, 5, 7
TOKEN_ROW_N = torch.tensor([0, 0, 0, 1, 1, 3, 3, 5, 6, 6])  # row 2 and 4 are not asked for
TOKEN_ID_N = torch.tensor([0, 7, 0, 1, 9, 10, 10, 1, 3, 2])  # twice the same token of rows 3 and 0
STARTS = np.array([0, 3, 5, 5, 7, 7, 8, 10])
CHUNK_ROWS = (1, 3, 7, 100)


@pytest.fixture
def tensors() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_RH = torch.randn(R, H, dtype=torch.float64, generator=generator)
    weight_VH = 2 * torch.randn(V, H, dtype=torch.float64, generator=generator)
    return hidden_RH.requires_grad_(True), weight_VH


def selected_log_probs(hidden_RH: Tensor, weight_VH: Tensor, *tokens: Any) -> Tensor:
    output = nn.Linear(H, V, bias=False)
    output.weight = nn.Parameter(weight_VH, weight_VH.requires_grad)
    found_N: Tensor = SelectedLogProbs(output)(hidden_RH, *tokens)
    return found_N


def _plain(hidden_RH: Tensor, weight_VH: Tensor) -> Tensor:
    return torch.log_softmax(hidden_RH @ weight_VH.T, dim=-1)[TOKEN_ROW_N, TOKEN_ID_N]


@pytest.mark.parametrize("rows", CHUNK_ROWS)
def test_value_and_gradient(rows: int, tensors: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "_CHUNK_ELEMENTS", rows * V)
    hidden_RH, weight_VH = tensors
    got_N = selected_log_probs(hidden_RH, weight_VH, TOKEN_ROW_N, TOKEN_ID_N, STARTS)
    expected_N = _plain(hidden_RH, weight_VH)
    assert got_N.dtype == torch.float64
    torch.testing.assert_close(got_N, expected_N, atol=1e-12, rtol=0)
    upstream_N = torch.linspace(-1, 2, len(TOKEN_ROW_N), dtype=torch.float64)
    [got_RH], [expected_RH] = (torch.autograd.grad(value, hidden_RH, upstream_N) for value in (got_N, expected_N))
    torch.testing.assert_close(got_RH, expected_RH, atol=1e-12, rtol=0)
    assert (got_RH[[2, 4]] == 0).all()
    assert (got_RH[[0, 1, 3, 5, 6]].norm(dim=-1) > 0).all()


@pytest.mark.parametrize("rows", CHUNK_ROWS)
def test_gradcheck(rows: int, tensors: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "_CHUNK_ELEMENTS", rows * V)
    hidden_RH, weight_VH = tensors
    assert torch.autograd.gradcheck(
        lambda h: selected_log_probs(h, weight_VH, TOKEN_ROW_N, TOKEN_ID_N, STARTS), (hidden_RH,)
    )


def test_a_chunk_smaller_than_the_vocabulary_is_one_row(
    tensors: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "_CHUNK_ELEMENTS", 1)
    hidden_RH, weight_VH = tensors
    got_N = selected_log_probs(hidden_RH, weight_VH, TOKEN_ROW_N, TOKEN_ID_N, STARTS)
    torch.testing.assert_close(got_N, _plain(hidden_RH, weight_VH), atol=1e-12, rtol=0)


def test_the_output_layer_gets_no_gradient(tensors: tuple[Tensor, Tensor]) -> None:
    hidden_RH, _ = tensors
    output = nn.Linear(H, V, bias=False, dtype=torch.float64)
    SelectedLogProbs(output)(hidden_RH, TOKEN_ROW_N, TOKEN_ID_N, STARTS).sum().backward()
    assert output.weight.grad is None
    assert hidden_RH.grad is not None


def test_it_cannot_be_differentiated_twice_by_mistake(tensors: tuple[Tensor, Tensor]) -> None:
    hidden_RH, weight_VH = tensors
    score = selected_log_probs(hidden_RH, weight_VH, TOKEN_ROW_N, TOKEN_ID_N, STARTS).square().sum()
    [first_RH] = torch.autograd.grad(score, hidden_RH, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first_RH.sum().backward()


def test_without_gradient(tensors: tuple[Tensor, Tensor]) -> None:
    hidden_RH, weight_VH = tensors
    got_N = selected_log_probs(hidden_RH.detach(), weight_VH, TOKEN_ROW_N, TOKEN_ID_N, STARTS)
    assert not got_N.requires_grad
    torch.testing.assert_close(got_N, _plain(hidden_RH, weight_VH).detach(), atol=1e-12, rtol=0)


def test_bfloat16_weights_give_float32_log_probabilities(tensors: tuple[Tensor, Tensor]) -> None:
    hidden_RH, weight_VH = (t.detach().bfloat16() for t in tensors)
    got_N = selected_log_probs(hidden_RH, weight_VH, TOKEN_ROW_N, TOKEN_ID_N, STARTS)
    assert got_N.dtype == torch.float32
    expected_N = torch.log_softmax(hidden_RH.float() @ weight_VH.float().T, dim=-1)[TOKEN_ROW_N, TOKEN_ID_N]
    torch.testing.assert_close(got_N, expected_N, atol=1e-6, rtol=0)


def test_bfloat16_gradients_of_many_actions_are_added_up_in_float32() -> None:
    """A state of 400 actions whose first tokens are predicted by one row; the gradient of a softmax over them."""
    generator = torch.Generator().manual_seed(0)
    vocabulary, width, actions = 50, 32, 400
    weight_VH, hidden_1H = (torch.randn(n, width, generator=generator).bfloat16() for n in (vocabulary, 1))
    row_N = torch.zeros(actions, dtype=torch.int64)
    id_N = torch.randint(vocabulary, (actions,), generator=generator)
    upstream_N = torch.randn(actions, generator=generator)
    upstream_N -= upstream_N.mean()
    hidden_1H.requires_grad_(True)
    got_N = selected_log_probs(hidden_1H, weight_VH, row_N, id_N, np.array([0, actions]))
    [got_1H] = torch.autograd.grad(got_N, hidden_1H, upstream_N)
    expected_1H = (upstream_N[:, None].double() * weight_VH[id_N].double()).sum(dim=0, keepdim=True)  # the mean cancels
    assert got_1H.dtype == torch.bfloat16
    unavoidable = (expected_1H.bfloat16() - expected_1H).norm()
    assert (got_1H - expected_1H).norm() < 1.1 * unavoidable


def test_it_is_a_probability_over_the_vocabulary(tensors: tuple[Tensor, Tensor]) -> None:
    hidden_RH, weight_VH = tensors
    row_N = torch.full((V,), 4)
    got_V = selected_log_probs(hidden_RH, weight_VH, row_N, torch.arange(V), np.array([0, 0, 0, 0, 0, V, V, V]))
    assert got_V.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
    assert ((hidden_RH @ weight_VH.T)[4].exp().sum() - 1).abs() > 1  # raw logits are none


def test_the_scores_of_all_one_token_actions_sum_to_one() -> None:
    lm = tiny_lm("qwen3")
    every_token = tuple(np.array([token]) for token in range(VOCABULARY))
    log_probs_BA = lm.forward(lm.pack([TokenisedQuery(np.array([5, 6, 7]), every_token)])).log_probs_BA
    assert log_probs_BA.exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_the_scores_of_all_two_token_actions_with_one_beginning_sum_to_its_score() -> None:
    lm = tiny_lm("llama")
    actions = (np.array([9]), *(np.array([9, token]) for token in range(VOCABULARY)))
    score_A = lm.forward(lm.pack([TokenisedQuery(np.array([5, 6, 7]), actions)])).log_probs_BA[0]
    assert score_A[1:].logsumexp(dim=0).item() == pytest.approx(score_A[0].item(), abs=1e-5)


GATE = 0.05  # of total variation, in bfloat16: `build.PARITY_TOLERANCES`


def test_engine_and_learner_agree_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated: 500 states of 8 actions of 5 tokens among the likeliest; logits about 24 with a deviation of 4.

    Hidden states of the two differ by a rounding, as where other kernels computed them.
    """
    generator = torch.Generator().manual_seed(0)
    states, actions, tokens, vocabulary, width = 500, 8, 5, 200, 64
    row_R = torch.arange(states * actions * tokens)
    hidden_RH = torch.randn(len(row_R), width, generator=generator)
    weight_VH = (0.5 * torch.randn(vocabulary, width, generator=generator)).bfloat16()
    hidden_RH[:, 0], weight_VH[:, 0] = 4.0, 6.0
    other_RH = hidden_RH * (1 + 2.0**-9 * torch.randn(hidden_RH.shape, generator=generator))
    likely_R = torch.randint(10, (len(row_R), 1), generator=generator)
    token_R = (hidden_RH @ weight_VH.float().T).topk(10).indices.gather(1, likely_R).squeeze(1)

    def log_policy(hidden_RH: Tensor) -> Tensor:
        found_R = selected_log_probs(hidden_RH.bfloat16(), weight_VH, row_R, token_R, np.arange(len(row_R) + 1))
        return torch.log_softmax(found_R.view(states, actions, tokens).sum(dim=-1), dim=-1)

    def share_beyond_the_gate() -> float:
        variation_B = (log_policy(hidden_RH).exp() - log_policy(other_RH).exp()).abs().sum(dim=-1) / 2
        return (variation_B > GATE).double().mean().item()

    assert share_beyond_the_gate() <= 0.001
    monkeypatch.setattr(logprobs, "logits", lambda hidden_RH, weight_VH: (hidden_RH @ weight_VH.T).float())
    assert share_beyond_the_gate() > 0.05, "and rounded logits would not"
