"""Which weights learn from which loss, what follows them, and what never moves."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from sacglam.algos import equations
from sacglam.errors import CheckpointError
from sacglam.models.actor_critic import ActorCritic
from sacglam.models.packed_lm import ACTOR, CRITIC, target_of
from tests.unit.models.reference import (
    Backbone,
    TargetBackbone,
    adapted,
    adapters_of,
    ragged,
    sac_batch,
    sac_loss,
    shake,
    tiny_actor_critic,
    tiny_lm,
    tiny_model,
)

BACKBONES: tuple[Backbone, ...] = ("shared", "frozen", "separate")
TARGETS: tuple[TargetBackbone, ...] = ("adapter", "online")


def _moved(parameters: Iterable[nn.Parameter]) -> str:
    """Whether all, some or none of the parameters have a gradient that is not zero."""
    moved = [p.grad is not None and bool(p.grad.norm() > 0) for p in parameters]
    return "all" if all(moved) else "some" if any(moved) else "none"


@pytest.mark.parametrize(
    ("backbone", "target_backbone", "names"),
    [
        ("shared", "adapter", ["default", "default_target"]),
        ("frozen", "adapter", ["default", "default_target"]),
        ("separate", "adapter", ["default", "critic", "critic_target"]),
        ("shared", "online", ["default"]),
        ("frozen", "online", ["default"]),
        ("separate", "online", ["default", "critic"]),
    ],
)
def test_the_adapters_that_each_variant_needs(
    backbone: Backbone, target_backbone: TargetBackbone, names: list[str]
) -> None:
    assert adapters_of(backbone, target_backbone) == names
    assert target_of(ACTOR) == "default_target"
    assert target_of(CRITIC) == "critic_target"


@pytest.mark.parametrize(("name", "merged"), [("llama", True), ("flan", False)])
@pytest.mark.parametrize(
    ("backbone", "from_critic", "from_actor"),
    [
        ("shared", {ACTOR: "all"}, {ACTOR: "all"}),
        ("frozen", {ACTOR: "none"}, {ACTOR: "all"}),
        ("separate", {ACTOR: "none", CRITIC: "all"}, {ACTOR: "all", CRITIC: "none"}),
    ],
)
def test_who_learns_from_which_loss(
    backbone: Backbone, from_critic: dict[str, str], from_actor: dict[str, str], merged: bool, name: str
) -> None:
    names = adapters_of(backbone)
    for loss, expected in (("critic", from_critic), ("actor", from_actor)):
        lm = tiny_lm(name, names, merged=merged)
        model, heads, target_heads = tiny_actor_critic(lm, backbone)
        batch, _, _ = sac_batch(lm)
        values = model.evaluate(batch.packed)
        if loss == "critic":
            equations.critic_loss(values.q_CBA, batch.action_B, batch.reward_WT[:, 0]).backward()
        else:
            equations.actor_loss(values.log_pi_BA, values.q_CBA, alpha=0.1).backward()
        found = {adapter: _moved(lm.adapter_parameters(adapter).values()) for adapter in names}
        assert found == {names[-1]: "none"} | expected, loss
        assert _moved(heads.parameters()) == ("all" if loss == "critic" else "none")
        assert _moved(target_heads.parameters()) == "none"


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("target_backbone", TARGETS)
@pytest.mark.parametrize(("name", "train_actor"), [("qwen2", False), ("t5", True)])
def test_the_joint_loss_gives_the_target_nothing(
    name: str, backbone: Backbone, target_backbone: TargetBackbone, train_actor: bool
) -> None:
    lm = tiny_lm(name, adapters_of(backbone, target_backbone))
    model, heads, target_heads = tiny_actor_critic(lm, backbone, target_backbone)
    batch, _, _ = sac_batch(lm)
    loss = sac_loss(model, batch, 0.1, train_actor)
    loss.backward()
    actor = "all" if train_actor or backbone == "shared" else "none"
    assert _moved(lm.adapter_parameters(ACTOR).values()) == actor
    if backbone == "separate":
        assert _moved(lm.adapter_parameters(CRITIC).values()) == "all"
    assert _moved(heads.parameters()) == "all"
    frozen = [*target_heads.parameters()]
    if target_backbone == "adapter":
        frozen += lm.adapter_parameters(adapters_of(backbone)[-1]).values()
    assert [p.grad for p in frozen] == [None] * len(frozen)
    assert not any(p.requires_grad for p in frozen)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_what_the_optimiser_is_given(backbone: Backbone) -> None:
    lm = tiny_lm("llama", adapters_of(backbone))
    model, heads, _ = tiny_actor_critic(lm, backbone)
    actor, critic = ({id(p) for p in group} for group in (model.actor_parameters(), model.critic_parameters()))
    assert actor == {id(p) for p in lm.adapter_parameters(ACTOR).values()}
    expected = {id(p) for p in heads.parameters()}
    if backbone == "separate":
        expected |= {id(p) for p in lm.adapter_parameters(CRITIC).values()}
    assert critic == expected


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("target_backbone", TARGETS)
def test_the_target_is_an_average_by_hand(backbone: Backbone, target_backbone: TargetBackbone) -> None:
    lm = tiny_lm("llama", adapters_of(backbone, target_backbone))
    model, heads, target_heads = tiny_actor_critic(lm, backbone, target_backbone)
    online = [*heads.parameters()]
    target = [*target_heads.parameters()]
    if target_backbone == "adapter":
        critic = CRITIC if backbone == "separate" else ACTOR
        online += lm.adapter_parameters(critic).values()
        target += lm.adapter_parameters(target_of(critic)).values()
    with torch.no_grad():
        for parameter in online:
            parameter.fill_(4.0)
        for parameter in target:
            parameter.fill_(0.0)
    for expected in (1.0, 1.75, 2.3125):  # a quarter of the way from 0, 1, 1.75 to 4
        model.update_target(0.25, torch._foreach_lerp_)
        assert {value for p in target for value in p.unique().tolist()} == {expected}
    model.update_target(1.0, torch._foreach_lerp_)
    assert {value for p in [*target, *online] for value in p.unique().tolist()} == {4.0}
    if backbone == "separate":
        assert not any((p == 4.0).any() for p in lm.adapter_parameters(ACTOR).values())


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("target_backbone", TARGETS)
def test_the_target_begins_where_the_online_network_is(backbone: Backbone, target_backbone: TargetBackbone) -> None:
    names = adapters_of(backbone, target_backbone)
    lm = adapted("llama", tiny_model("llama"), names)
    model, _, target_heads = tiny_actor_critic(lm, backbone, target_backbone)
    model.update_target(1.0, torch._foreach_lerp_)  # undoes the helper's difference between the heads
    packed = lm.pack(ragged())
    assert torch.equal(model.bootstrap(packed).q_CBA, model.evaluate(packed).q_CBA)
    with torch.no_grad():
        next(target_heads.parameters()).add_(1.0)
    assert not torch.equal(model.bootstrap(packed).q_CBA, model.evaluate(packed).q_CBA)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("target_backbone", TARGETS)
@pytest.mark.parametrize(("lm_name", "critic_input"), [("qwen3", "observation_action"), ("flan", "observation")])
def test_what_the_bootstrap_reads(
    lm_name: str, backbone: Backbone, target_backbone: TargetBackbone, critic_input: str
) -> None:
    names = adapters_of(backbone, target_backbone)
    lm = tiny_lm(lm_name, names)
    model, _, target_heads = tiny_actor_critic(lm, backbone, target_backbone, critic_input)
    packed = lm.pack(ragged())
    reads = CRITIC if backbone == "separate" else ACTOR
    adapter = target_of(reads) if target_backbone == "adapter" else reads
    bootstrap, online = model.bootstrap(packed), model.evaluate(packed)
    assert torch.equal(bootstrap.log_pi_BA, online.log_pi_BA)  # the policy is the online actor's
    assert not bootstrap.log_pi_BA.requires_grad
    assert not bootstrap.q_CBA.requires_grad
    torch.testing.assert_close(bootstrap.q_CBA, target_heads(lm.forward(packed, adapter)))
    others = [name for name in names if name != adapter]
    for name in others:
        assert not torch.allclose(bootstrap.q_CBA, target_heads(lm.forward(packed, name)), atol=1e-4)


@pytest.mark.parametrize(
    ("lm_name", "backbone", "merged"),
    [("llama", "shared", True), ("llama", "frozen", False), ("flan", "separate", True), ("flan", "shared", False)],
)
def test_the_base_model_never_changes_and_is_not_copied(lm_name: str, backbone: Backbone, merged: bool) -> None:
    base = tiny_model(lm_name)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    count = sum(p.numel() for p in base.parameters())
    names = adapters_of(backbone)
    lm = adapted(lm_name, base, names, merged=merged)
    shake(lm, names)
    model, heads, _ = tiny_actor_critic(lm, backbone)
    batch, _, _ = sac_batch(lm)
    parameters = [*model.actor_parameters(), *model.critic_parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    start = [p.detach().clone() for p in parameters]
    for _ in range(2):
        optimizer.zero_grad()
        sac_loss(model, batch, 0.1).backward()
        optimizer.step()
        model.update_target(0.5, torch._foreach_lerp_)
    assert not any(torch.equal(p, s) for p, s in zip(parameters, start, strict=True))

    # peft has put its layers around the base model's in place, and nothing has been added but adapters.
    after = {name.replace(".base_layer", ""): tensor for name, tensor in base.state_dict().items()}
    unchanged = {name: tensor for name, tensor in after.items() if "lora_" not in name}
    assert unchanged.keys() == before.keys()
    assert all(torch.equal(unchanged[name], tensor) for name, tensor in before.items())
    adapter = {
        # 2 layers x (q, o: 32 + 32; k, v: 32 + 16; gate, up, down: 32 + 48) x rank 4.
        "llama": 2 * (2 * 64 + 2 * 48 + 3 * 80) * 4,
        # 2 layers of encoder and 3 of decoder x (q, k, v, o: 32 + 32; in twice and out: 32 + 48), 3 x cross-attention.
        "flan": (5 * (4 * 64 + 3 * 80) + 3 * 4 * 64) * 4,
    }[lm_name]
    assert sum(p.numel() for p in base.parameters()) == count + len(names) * adapter
    assert not any(p.requires_grad for n, p in base.named_parameters() if "lora_" not in n)
    saved = sum(tensor.numel() for tensor in model.state().values())
    assert saved == len(names) * adapter + 2 * sum(p.numel() for p in heads.parameters())


@pytest.mark.parametrize(
    ("lm_name", "target_backbone", "backbone"),
    [*itertools.product(["llama"], TARGETS, BACKBONES), ("flan", "adapter", "separate")],
)
def test_state_round_trip(lm_name: str, backbone: Backbone, target_backbone: TargetBackbone) -> None:
    names = adapters_of(backbone, target_backbone)
    source_lm = tiny_lm(lm_name, names)
    source, _, _ = tiny_actor_critic(source_lm, backbone, target_backbone)
    other_lm = adapted(lm_name, tiny_model(lm_name), names)
    other, _, _ = tiny_actor_critic(other_lm, backbone, target_backbone)
    for parameter in other.critic_parameters():
        parameter.data.zero_()
    state = {name: tensor.clone() for name, tensor in source.state().items()}
    packed = source_lm.pack(ragged())
    assert not torch.allclose(other.evaluate(packed).q_CBA, source.evaluate(packed).q_CBA, atol=1e-3)
    other.load_state(state)
    for ask in (ActorCritic.evaluate, ActorCritic.bootstrap):
        got, expected = ask(other, packed), ask(source, packed)
        assert torch.equal(got.log_pi_BA, expected.log_pi_BA)
        assert torch.equal(got.q_CBA, expected.q_CBA)
    assert other.state().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in other.state().items())
    assert not any(tensor.requires_grad for tensor in other.state().values())


def test_a_state_of_another_shape_or_with_other_names_is_refused_whole() -> None:
    lm = tiny_lm("llama", adapters_of("shared"))
    model, _, _ = tiny_actor_critic(lm, "shared")
    before = {name: tensor.clone() for name, tensor in model.state().items()}
    ones = {name: torch.ones_like(tensor) for name, tensor in before.items()}
    last = [*ones][-1]

    def refused(state: dict[str, Tensor], match: str) -> None:
        with pytest.raises(CheckpointError, match=match):
            model.load_state(state)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state().items())

    refused(ones | {last: torch.ones(1, 1)}, last)  # would broadcast
    refused({name: tensor for name, tensor in ones.items() if name != last}, last)
    refused(ones | {"lora.other": torch.ones(1)}, "lora.other")
