"""The packed forward equals separate sequences: scores, hidden states, gradients, and the whole SAC loss."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from sacglam.algos.sac import SacConfig
from sacglam.errors import ModelError
from sacglam.models.heads import QHeads
from sacglam.models.packed_lm import ACTOR, CRITIC, target_of
from sacglam.models.tokens import TokenisedQuery
from tests.unit.models.reference import (
    BOTH,
    PACKED,
    SEQ2SEQ,
    Backbone,
    Reference,
    TargetBackbone,
    adapters_of,
    assert_same_gradients,
    assert_same_scores_and_gradients,
    gradients,
    ragged,
    sac_batch,
    sac_loss,
    tiny_actor_critic,
    tiny_lm,
)

ALPHA = 0.3
ROUNDING = 1e-7  # of float32, relative


@pytest.mark.parametrize(
    ("name", "attention", "merged"),
    [(name, ("sdpa", "eager")[n % 2], n % 3 == 0) for n, name in enumerate(PACKED)],
)
def test_scores_hidden_states_and_lora_gradients(name: str, attention: str, merged: bool) -> None:
    lm = tiny_lm(name, attention=attention, merged=merged, bucket=16)
    assert_same_scores_and_gradients(lm, Reference(name, lm), ragged(alike=name not in SEQ2SEQ))


@pytest.mark.parametrize("name", BOTH)
def test_an_output_says_what_is_padding(name: str) -> None:
    lm, queries = tiny_lm(name, bucket=16), ragged()
    output = lm.forward(lm.pack(queries))
    assert output.log_probs_BA.dtype == torch.float32
    for row, query in enumerate(queries):
        count = len(query.actions)
        assert output.actions_BA[row].tolist() == [True] * count + [False] * (5 - count)
        assert output.lengths_BA[row, :count].tolist() == [len(action) for action in query.actions]


@pytest.mark.parametrize("name", BOTH)
def test_a_state_that_is_there_more_than_once_is_computed_once(name: str) -> None:
    lm, queries = tiny_lm(name), ragged()
    place_B = [1, 0, 1, 2, 0, 1]
    packed = lm.pack([queries[i] for i in place_B])
    assert len(packed.ids_BS) == 3
    output, weight_B = lm.forward(packed), torch.arange(1.0, 7.0)[:, None]
    apart = lm.forward(lm.pack([queries[i] for i in (1, 0, 2)]))
    for field in fields(output):
        assert torch.equal(getattr(output, field.name), getattr(apart, field.name)[[0, 1, 0, 2, 1, 0]])
    (weight_B * output.log_probs_BA).sum().backward()
    got = gradients(lm)
    lm.module.zero_grad()
    for i, weight in zip(place_B, weight_B, strict=True):
        (weight * lm.forward(lm.pack([queries[i]])).log_probs_BA).sum().backward()
    assert_same_gradients(got, gradients(lm))


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_the_last_mlp_leaves_out_what_nothing_reads(name: str) -> None:
    lm = tiny_lm(name, bucket=16)
    packed = lm.pack(ragged())
    seen: list[tuple[int, ...]] = []
    for path, module in lm.module.named_modules():
        if path.endswith("mlp.up_proj"):
            module.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[:-1]))
    lm.forward(packed)
    # All tokens of actions, and of each of the three prompts the last.
    assert seen == [packed.ids_BS.shape, (1, len(packed.token_id_N) + 3)]


@pytest.mark.parametrize(("actions", "rows"), [(20_000, 1), (6_000, 4)])
def test_more_actions_than_fit_in_memory_are_refused(actions: int, rows: int) -> None:
    """Of 20 tokens: with 6 bytes for each pair of tokens in a row 894 GiB, or in 4 rows 322, less what they share."""
    ids = torch.randint(50, (actions, 20), generator=torch.Generator().manual_seed(0)).numpy()
    queries = [TokenisedQuery(ids[row], tuple(ids)) for row in range(rows)]
    message = (
        rf"{actions:,} actions are packed to [\d,]+ tokens .* masks of {rows} in one pass alone take [\d.]+ GiB of"
    )
    with pytest.raises(ModelError, match=message):
        tiny_lm("llama").pack(queries)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_layers_with_transposed_weights_are_not_merged() -> None:
    query, found = ragged(counts=[4])[0], []
    for merged in (False, True):
        lm = tiny_lm("gpt2", merged=merged)
        lm.forward(lm.pack([query])).log_probs_BA.square().sum().backward()
        found.append(gradients(lm))
    assert_same_gradients(found[1], found[0])


# The lengths of three windows, the second of which ends in termination.
WINDOWS = {"one step": (1, 1, 1), "ends within 4": (4, 2, 3), "ends within 8": (8, 1, 5)}


@pytest.mark.parametrize(
    ("name", "backbone", "merged"),
    [
        ("llama", "shared", False),
        ("qwen3", "frozen", True),
        ("llama", "separate", True),
        ("flan", "shared", True),
        ("flan", "frozen", False),
        ("t5", "separate", False),
    ],
)
def test_the_gradients_of_the_sac_loss(name: str, backbone: Backbone, merged: bool) -> None:
    assert_sac_loss_is_the_references(name, backbone, merged, "adapter", WINDOWS["one step"], SacConfig(gamma=0.9))


@pytest.mark.parametrize(
    ("name", "windows", "target_backbone"),
    [
        ("llama", "one step", "online"),
        ("llama", "ends within 4", "adapter"),
        ("llama", "ends within 8", "online"),
        ("t5", "ends within 4", "online"),
        ("t5", "ends within 8", "adapter"),
    ],
)
def test_the_gradients_of_windows(name: str, windows: str, target_backbone: TargetBackbone) -> None:
    config = SacConfig(gamma=0.9, td_lambda=0.8, self_imitation=2.0, critic_weight=3.0)
    assert_sac_loss_is_the_references(name, "shared", True, target_backbone, WINDOWS[windows], config)


def assert_sac_loss_is_the_references(
    name: str,
    backbone: Backbone,
    merged: bool,
    target_backbone: TargetBackbone,
    lengths: tuple[int, ...],
    config: SacConfig,
) -> None:
    adapters = adapters_of(backbone, target_backbone)
    lm = tiny_lm(name, adapters, merged=merged, bucket=32)
    model, heads, target_heads = tiny_actor_critic(lm, backbone, target_backbone)
    batch, states, following = sac_batch(lm, lengths)
    reference = Reference(name, lm, adapters)

    loss = sac_loss(model, batch, ALPHA, config=config)
    loss.backward()
    got_heads = {head: p.grad for head, p in heads.named_parameters() if p.grad is not None}
    heads.zero_grad(set_to_none=True)

    expected, first = torch.zeros(()), 0
    for window, length in enumerate(lengths):
        inside, after = states[first : first + length], following[window]
        y = 0.0 if after is None else _value(reference, target_heads, after, adapters[-1], config.soft_target)
        returned = float(batch.return_after_W[window])
        next_value = y
        for step in reversed(range(length)):
            row = first + step
            reward = float(batch.reward_WT[window, step - length])
            lambda_ = 1.0 if config.td_lambda is None else config.td_lambda
            y = reward + config.gamma * ((1 - lambda_) * next_value + lambda_ * y)
            returned = reward + config.gamma * returned
            next_value = _value(reference, target_heads, inside[step], adapters[-1], config.soft_target)
            alone = reference(inside[step])
            log_pi_A = torch.log_softmax(alone.log_prob_A, dim=0)
            seen = reference(inside[step], CRITIC) if backbone == "separate" else alone
            hidden_AH, score_A = seen.action_hidden_AH, seen.log_prob_A
            if backbone == "frozen":
                hidden_AH, score_A = hidden_AH.detach(), score_A.detach()
            q_CA = _q(heads, hidden_AH, score_A)
            q_A = q_CA.detach().min(dim=0).values
            taken = batch.action_B[row]
            expected = expected + config.critic_weight * (q_CA[:, taken] - y).square().sum()
            expected = expected + (log_pi_A.exp() * (ALPHA * log_pi_A - q_A)).sum()
            pi_A = log_pi_A.detach().exp()
            value = (pi_A * q_A).sum()
            advantage = float((returned - value) / (pi_A * (q_A - value).abs()).sum())
            expected = expected - config.self_imitation * min(max(advantage, 0.0), 1.0) * log_pi_A[taken]
        first += length
    expected = expected / len(states)
    expected.backward()

    trained = [ACTOR, CRITIC] if backbone == "separate" else [ACTOR]
    wanted = {adapter: reference.gradients(adapter) for adapter in trained}
    wanted_heads = {head: p.grad for head, p in heads.named_parameters() if p.grad is not None}
    # Where the policy is nearly certain, the actions' parts of the actor's gradient nearly cancel: what is left is 1e-4
    # of the critic's or less, while float32 rounds each part. So errors may also reach one rounding of the largest
    # gradient of this loss. Over 50 seeds they reached 0.76 of the bound, and without this part 180 times it.
    everything = [*wanted_heads.values(), *(value for found in wanted.values() for value in found.values())]
    rounding = ROUNDING * max(value.norm().item() for value in everything)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    for adapter in trained:
        assert_same_gradients(gradients(lm, adapter), wanted[adapter], rounding=rounding)
    assert got_heads.keys() == dict(heads.named_parameters()).keys()
    assert_same_gradients(got_heads, wanted_heads, rounding=rounding)
    if target_backbone == "adapter":
        assert adapters[-1] == target_of(trained[-1])
        assert gradients(lm, adapters[-1]) == {}


@torch.no_grad()
def _value(reference: Reference, target_heads: QHeads, state: TokenisedQuery, target_adapter: str, soft: bool) -> float:
    """The expectation in Eq. 3: policy of the actor, Q of the target; without entropy and within [0, 1] if not soft."""
    log_pi_A = torch.log_softmax(reference(state).log_prob_A, dim=0)
    seen = reference(state, target_adapter)
    q_A = _q(target_heads, seen.action_hidden_AH, seen.log_prob_A).min(dim=0).values
    if soft:
        return float((log_pi_A.exp() * (q_A - ALPHA * log_pi_A)).sum())
    return min(max(float((log_pi_A.exp() * q_A).sum()), 0.0), 1.0)


def _q(heads: QHeads, hidden_AH: Tensor, score_A: Tensor) -> Tensor:
    assert heads.score_weights is not None
    centred_A = score_A - score_A.mean()
    pairs = zip(heads.critics, heads.score_weights, strict=True)
    return torch.stack([critic(hidden_AH)[:, 0] + weight * centred_A for critic, weight in pairs])


@pytest.mark.parametrize(("name", "attention"), [("qwen2", "sdpa"), ("flan", "eager")])
def test_the_bucket_changes_nothing(name: str, attention: str) -> None:
    adapters = adapters_of("shared")
    outcomes = []
    for bucket in (1, 64):
        lm = tiny_lm(name, adapters, attention=attention, bucket=bucket)
        model, heads, _ = tiny_actor_critic(lm, "shared")
        batch, states, _ = sac_batch(lm)
        assert (batch.packed.ids_BS.shape[1] % 64 == 0) == (bucket == 64)
        log_probs_BA = lm.forward(lm.pack(states)).log_probs_BA
        values = model.evaluate(batch.packed)
        loss = sac_loss(model, batch, ALPHA)
        loss.backward()
        head_gradients = [p.grad for p in heads.parameters()]
        outcomes.append(([log_probs_BA, values.log_pi_BA, values.q_CBA, loss], gradients(lm), head_gradients))
    (got, got_lora, got_heads), (expected, expected_lora, expected_heads) = outcomes
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert_same_gradients(got_lora, expected_lora, 1e-5)
    torch.testing.assert_close(got_heads, expected_heads, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["mistral", "umt5"])
def test_a_longer_row_does_not_change_the_others(name: str) -> None:
    lm = tiny_lm(name, adapters_of("shared"))
    model, _, _ = tiny_actor_critic(lm, "shared")
    short = ragged(counts=[2, 3])
    [long] = ragged(seed=7, counts=[6])
    long = TokenisedQuery(torch.arange(40).numpy() % 61, (*long.actions[:5], torch.arange(9).numpy()))
    alone, padded = (model.evaluate(lm.pack(queries)) for queries in (short, [short[0], long, short[1]]))
    assert padded.log_pi_BA.shape == (3, 6)
    torch.testing.assert_close(padded.log_pi_BA[[0, 2], :3], alone.log_pi_BA, atol=1e-5, rtol=0)
    torch.testing.assert_close(padded.q_CBA[:, [0, 2], :3], alone.q_CBA, atol=1e-5, rtol=0)
    assert torch.isneginf(padded.log_pi_BA[[0, 2], 3:]).all()
    assert (padded.q_CBA[:, [0, 2], 3:] == 0).all()


@pytest.mark.parametrize("name", ["gemma", "t5"])
def test_permuted_rows_and_actions_give_permuted_results(name: str) -> None:
    lm = tiny_lm(name, adapters_of("shared"))
    model, _, _ = tiny_actor_critic(lm, "shared")
    queries = ragged(counts=[4, 4, 4])
    rows, actions = [2, 0, 1], [3, 1, 0, 2]
    permuted = [TokenisedQuery(queries[b].prompt, tuple(queries[b].actions[a] for a in actions)) for b in rows]
    before, after = (model.evaluate(lm.pack(q)) for q in (queries, permuted))
    torch.testing.assert_close(after.log_pi_BA, before.log_pi_BA[rows][:, actions], atol=1e-5, rtol=0)
    torch.testing.assert_close(after.q_CBA, before.q_CBA[:, rows][:, :, actions], atol=1e-5, rtol=0)
    assert before.log_pi_BA.std() > 0.1  # or there would be nothing to permute
    assert before.q_CBA.std() > 0.01


@pytest.mark.parametrize("name", BOTH)
def test_an_action_does_not_see_its_siblings(name: str) -> None:
    lm = tiny_lm(name)
    [query] = ragged(counts=[3])
    other = TokenisedQuery(query.prompt, (query.actions[0][::-1] + 1, *query.actions[1:]))
    before, after = (lm.forward(lm.pack([q])) for q in (query, other))
    assert (before.log_probs_BA[0, 0] - after.log_probs_BA[0, 0]).abs() > 1e-2
    torch.testing.assert_close(before.log_probs_BA[0, 1:], after.log_probs_BA[0, 1:], atol=1e-6, rtol=0)
    torch.testing.assert_close(before.action_hidden_BAH[0, 1:], after.action_hidden_BAH[0, 1:], atol=1e-6, rtol=0)
