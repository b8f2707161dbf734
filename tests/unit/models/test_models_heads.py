"""Critic heads and policy head, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sacglam.errors import ModelError
from sacglam.models.heads import PolicyHead, QHeads, mlp
from sacglam.models.packed_lm import LMOutput
from sacglam.models.tokens import TokenisedQuery
from tests.unit.models.reference import critic_config, tiny_lm


def _output() -> LMOutput:
    """Two states, three actions and one; hidden states of width 2; padding holds what must not be seen."""
    return LMOutput(
        log_probs_BA=torch.tensor([[-1.0, -2.0, -6.0], [-3.0, 0.0, 0.0]]),
        action_hidden_BAH=torch.tensor([[[1.0, 2.0], [3.0, -1.0], [0.0, 0.0]], [[-1.0, 1.0], [9.0, 9.0], [9.0, 9.0]]]),
        prompt_hidden_BH=torch.tensor([[1.0, 1.0], [-2.0, 1.0]]),
        actions_BA=torch.tensor([[True, True, True], [True, False, False]]),
        lengths_BA=torch.tensor([[1, 2, 3], [3, 1, 1]]),
    )


def _set(heads: QHeads, layers: list[list[list[list[float]]]]) -> None:
    """Set the weights of each critic's layers; the biases become 0.5."""
    for critic, weights in zip(heads.critics, layers, strict=True):
        linear = [m for m in critic.modules() if isinstance(m, torch.nn.Linear)]
        for layer, weight in zip(linear, weights, strict=True):
            layer.weight.data = torch.tensor(weight)
            layer.bias.data.fill_(0.5)


def test_a_q_value_for_each_actions_last_token() -> None:
    heads = QHeads(2, critic_config([2], 2, "observation_action"))
    _set(heads, [[[[1.0, 0.0], [0.0, 1.0]], [[1.0, 10.0]]], [[[-1.0, 0.0], [0.0, -1.0]], [[1.0, 1.0]]]])
    # Critic 0: relu(x + 0.5) . (1, 10) + 0.5; critic 1: relu(0.5 - x) . (1, 1) + 0.5.
    assert heads(_output()).tolist() == [
        [[1.5 + 25 + 0.5, 3.5 + 0 + 0.5, 0.5 + 5 + 0.5], [0 + 15 + 0.5, 0.0, 0.0]],
        [[0.5, 0 + 1.5 + 0.5, 1.5], [1.5 + 0 + 0.5, 0.0, 0.0]],
    ]


@pytest.mark.parametrize("kind", ["observation_action", "observation"])
def test_the_critics_loss_has_the_same_gradients_from_the_taken_actions_alone(kind: str) -> None:
    torch.manual_seed(0)  # other initial weights may leave a critic without a hidden unit above zero
    heads = QHeads(2, critic_config([4], 2, kind, 0.25))
    taken_B = torch.tensor([2, 0])
    outcomes = []
    for only_B in (None, taken_B):
        hidden = {n: getattr(_output(), n).requires_grad_() for n in ("action_hidden_BAH", "prompt_hidden_BH")}
        heads.zero_grad()
        q_CBA = heads(replace(_output(), **hidden), only_B)
        q_CBA[:, [0, 1], taken_B].square().sum().backward()
        gradients = [p.grad for p in (*heads.parameters(), *hidden.values())]
        outcomes.append((q_CBA.detach(), *(gradient for gradient in gradients if gradient is not None)))
    torch.testing.assert_close(*outcomes, rtol=1e-6, atol=1e-6)
    assert sum(tensor.abs().sum() > 0 for tensor in outcomes[1]) == len(outcomes[1])


def test_a_q_value_for_each_action_index_on_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacglam.models.heads.MAX_ACTIONS", 4)
    heads = QHeads(2, critic_config([1], 1, "observation"))
    _set(heads, [[[[1.0, 2.0]], [[1.0], [2.0], [3.0], [4.0]]]])
    # The hidden unit: relu(1 + 2 + 0.5) = 3.5, and relu(-2 + 2 + 0.5) = 0.5. Action k: (k + 1) h + 0.5.
    assert heads(_output()).tolist() == [[[4.0, 7.5, 11.0], [1.0, 0.0, 0.0]]]


def test_with_prompt_input_the_actions_texts_do_not_matter() -> None:
    heads = QHeads(2, critic_config([8], 2, "observation"))
    output = _output()
    other = replace(output, action_hidden_BAH=output.action_hidden_BAH + 1)
    assert torch.equal(heads(output), heads(other))
    moved = replace(output, prompt_hidden_BH=output.prompt_hidden_BH + 1)
    assert not torch.equal(heads(output), heads(moved))


def test_an_actions_log_probability_adds_to_its_value() -> None:
    # The means over the first state's three actions and the second's one are -3 and -3; w is 0.5 and -2.
    plain, scored = (QHeads(2, critic_config([2], 2, "observation_action", weight)) for weight in (0.0, 0.25))
    assert plain.score_weights is None
    assert scored.score_weights is not None
    assert scored.score_weights.tolist() == [0.25, 0.25]
    scored.load_state_dict({**plain.state_dict(), "score_weights": torch.tensor([0.5, -2.0])})
    assert (scored(_output()) - plain(_output())).tolist() == [
        [pytest.approx([1.0, 0.5, -1.5], abs=1e-6), [0.0, 0.0, 0.0]],
        [pytest.approx([-4.0, -2.0, 6.0], abs=1e-6), [0.0, 0.0, 0.0]],
    ]


def test_too_many_actions_for_the_outputs() -> None:
    heads, output = QHeads(2, critic_config([2], 1, "observation")), _output()
    assert heads(output).shape == (1, 2, 3)
    many = replace(output, actions_BA=torch.ones(2, 65, dtype=torch.bool))
    with pytest.raises(
        ModelError, match=r"has 64 outputs, got a state with 65 actions; use critic\.input=observation_a"
    ):
        heads(many)


def test_heads_are_float32_whatever_the_model_is() -> None:
    output = _output()
    low = replace(
        output,
        action_hidden_BAH=output.action_hidden_BAH.bfloat16(),
        prompt_hidden_BH=output.prompt_hidden_BH.bfloat16(),
    )
    for kind in ("observation_action", "observation"):
        heads = QHeads(2, critic_config([4], 2, kind))
        # These hidden states are exact in bfloat16.
        assert heads(low).dtype == torch.float32
        assert torch.equal(heads(low), heads(output))


def test_the_critics_are_independent() -> None:
    torch.manual_seed(0)
    q_CBA = QHeads(2, critic_config([4], 2, "observation_action"))(_output())
    assert not torch.allclose(q_CBA[0], q_CBA[1])


def test_the_papers_head_has_two_hidden_layers() -> None:
    layers = [m for m in mlp(8, [1024, 1024], 1) if isinstance(m, torch.nn.Linear)]
    assert [(m.in_features, m.out_features) for m in layers] == [(8, 1024), (1024, 1024), (1024, 1)]
    assert [type(m).__name__ for m in mlp(8, [4, 4], 1)] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]


def _log_softmax(*scores: float) -> list[float]:
    total = math.log(sum(math.exp(score) for score in scores))
    return [score - total for score in scores]


@pytest.mark.parametrize(
    ("head", "scores"),
    [
        (PolicyHead(), (-1.0, -2.0, -6.0)),
        (PolicyHead(length_normalised=True), (-1.0, -1.0, -2.0)),
        (PolicyHead(temperature=2.0), (-0.5, -1.0, -3.0)),
        (PolicyHead(length_normalised=True, temperature=0.5), (-2.0, -2.0, -4.0)),
    ],
)
def test_the_policy_from_scores(head: PolicyHead, scores: tuple[float, ...]) -> None:
    log_pi_BA = head(_output())
    assert log_pi_BA[0].tolist() == pytest.approx(_log_softmax(*scores), abs=1e-6)
    assert log_pi_BA[1].tolist() == [0.0, -math.inf, -math.inf]  # the only action has probability 1


def test_padding_has_no_gradient() -> None:
    output = _output()
    scores_BA = output.log_probs_BA.requires_grad_(True)
    log_pi_BA = PolicyHead()(output)
    log_pi_BA[output.actions_BA].square().sum().backward()
    assert scores_BA.grad is not None
    assert torch.isfinite(scores_BA.grad).all()
    assert scores_BA.grad[1].tolist() == [0.0, 0.0, 0.0]
    assert (scores_BA.grad[0] != 0).all()


def test_lengths_count_the_end_of_sequence_token_if_it_is_scored() -> None:
    # Scoring EOS is a token more at the end of each action: the score of [a, eos] is log p(a) + log p(eos | a).
    lm = tiny_lm("llama")
    prompt, action, eos = np.array([3, 4]), np.array([7]), 2
    [[alone, ended]] = lm.forward(lm.pack([TokenisedQuery(prompt, (action, np.append(action, eos)))])).log_probs_BA
    after = lm.forward(lm.pack([TokenisedQuery(np.append(prompt, action), (np.array([eos]),))])).log_probs_BA
    assert ended.item() == pytest.approx(alone.item() + after.item(), abs=1e-5)
    output = lm.forward(lm.pack([TokenisedQuery(prompt, (action, np.append(action, eos)))]))
    normalised_BA = PolicyHead(length_normalised=True)(output)
    assert normalised_BA[0].tolist() == pytest.approx(_log_softmax(alone.item(), ended.item() / 2), abs=1e-5)
