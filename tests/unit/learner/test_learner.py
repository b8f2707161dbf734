"""The learner on the built-in model: warm-up, learning rates, clipping, and what a divergence leaves behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from sacglam import config
from sacglam.build import build_learner, build_model
from sacglam.clock import PhaseClock
from sacglam.errors import CheckpointError, DivergenceError
from sacglam.learner.backend import Backend
from sacglam.learner.deepspeed import DeepSpeedBackend
from sacglam.learner.learner import Learner
from sacglam.prompt import query
from sacglam.replay.graph import UNTRIED
from sacglam.resolve import on_this_machine
from sacglam.types import Observation, Window

ACTIONS = ("Grasp", "Go to baby red cat", "Go to blue water")
STATE = Observation("You see: baby red cat, blue water\nYou are on: nothing\nInventory: empty", ACTIONS)
NEXT = Observation("You see: baby red cat, blue water\nYou are on: baby red cat\nInventory: empty", ACTIONS)


def make_learner(*overrides: str) -> Learner:
    settings = ["threads=1", "critic.hidden=[16]", "env.copies=1", "algo.update_interval=1", "algo.warmup_updates=0"]
    resolved = on_this_machine(config.load(None, [*settings, *overrides]))
    return build_learner(resolved, build_model(resolved), PhaseClock())


def optimizer_of(learner: Learner) -> torch.optim.Optimizer:
    backend = learner.backend
    assert isinstance(backend, Backend)
    return backend.optimizer


def alpha_of(learner: Learner) -> float:
    return learner.algorithm.alpha.alpha


def windows(reward: float = 1.0) -> list[Window]:
    ended = Window("Grasp any cat", (STATE, NEXT), (0,), (reward,), True, "hindsight")
    going = Window("Grasp any cat", (STATE, NEXT), (1,), (0.0,), False, "real")
    return [ended, going, going, going]


def flat(learner: Learner, part: str) -> torch.Tensor:
    state = learner.model.state()
    return torch.cat([t.flatten() for name, t in state.items() if name.startswith(part)]).clone()


def test_initial_updates_of_the_critic_leave_the_policy_alone_even_without_a_warm_up() -> None:
    learner = make_learner()
    alpha = alpha_of(learner)
    [metrics] = learner.imitate([(False, windows())]).metrics
    assert "critic_loss" in metrics
    assert not {"actor_loss", "imitation_loss"} & metrics.keys()
    assert alpha_of(learner) == alpha


def test_warm_up_trains_the_critic_and_leaves_alpha_alone() -> None:
    learner = make_learner("algo.warmup_updates=2", "critic.backbone=frozen", "algo.alpha.lr=0.1")
    adapter, heads, alpha = flat(learner, "lora.default."), flat(learner, "heads."), alpha_of(learner)
    for _ in range(2):
        [metrics] = learner.learn([windows()]).metrics
        assert "actor_loss" not in metrics
        assert metrics["batch_hindsight_share"] == 0.25
    assert torch.equal(flat(learner, "lora.default."), adapter)
    assert not torch.equal(flat(learner, "heads."), heads)
    assert alpha_of(learner) == alpha
    assert "actor_loss" in learner.learn([windows()]).metrics[0]
    assert not torch.equal(flat(learner, "lora.default."), adapter)
    assert alpha_of(learner) < alpha  # the untrained policy is more random than the target asks
    assert learner.updates == 3


def test_first_adam_step_moves_each_part_by_its_own_learning_rate() -> None:
    # Adam's first step is lr * g / (|g| + eps), so lr wherever the gradient is far above eps.
    learner = make_learner("algo.actor_lr=1e-3", "algo.critic_lr=1e-2", "critic.backbone=separate")
    before = {part: flat(learner, part) for part in ("lora.default.", "lora.critic.", "heads.")}
    learner.learn([windows()])
    moved = {part: (flat(learner, part) - tensor).abs().max().item() for part, tensor in before.items()}
    assert moved["lora.default."] == pytest.approx(1e-3, rel=1e-2)
    assert moved["lora.critic."] == pytest.approx(1e-2, rel=1e-2)
    assert moved["heads."] == pytest.approx(1e-2, rel=1e-2)


def test_learning_rates_fall_to_a_tenth_over_the_budget() -> None:
    learner = make_learner("algo.lr_decay=true", "steps=4", "algo.updates_per_interval=1", "algo.critic_lr=0.01")
    rates = []
    for _ in range(6):
        learner.learn([windows()])
        rates.append(optimizer_of(learner).param_groups[1]["lr"])
    # 1 - 0.9 t / 4 for t = 0..4, and no lower afterwards
    assert rates == pytest.approx([0.01, 0.00775, 0.0055, 0.00325, 0.001, 0.001])


def test_clipping_bounds_the_gradient_that_adam_sees() -> None:
    learner = make_learner("algo.max_grad_norm=1e-3")
    norm = learner.learn([windows()]).metrics[0]["grad_norm"]
    assert norm > 1e-2, "the norm before clipping is what is reported"
    moments = [state["exp_avg"] / 0.1 for state in optimizer_of(learner).state.values()]  # exp_avg = (1 - 0.9) g
    assert math.sqrt(sum(g.square().sum().item() for g in moments)) == pytest.approx(1e-3, rel=1e-3)


def test_divergence_changes_nothing() -> None:
    learner = make_learner()
    learner.learn([windows()])
    before, updates = learner.state(), learner.updates
    kept = {name: tensor.clone() for name, tensor in before[0].items()}
    with pytest.raises(DivergenceError, match=r"expected finite losses, .* checkpoints, if there are any, are unaffec"):
        learner.learn([windows(reward=math.inf)])
    assert learner.updates == updates
    for name, tensor in learner.state()[0].items():
        assert torch.equal(tensor, kept[name]), name
    assert learner.state()[1] == before[1]


def test_a_batch_that_does_not_fit_is_taken_in_halves() -> None:
    """Memory runs out for 8 rows, and for 4 when some of the gradient is there already."""
    rows = windows() * 8
    plain = "algo.td_lambda=null"
    fits, tight = make_learner("algo.micro_batch_size=2", plain), make_learner(plain)
    losses, collate, sizes = tight.algorithm.losses, tight.algorithm.collate, []

    def collated(part: Sequence[Any]) -> Any:
        sizes.append(len(part))
        return collate(part)

    def limited(*args: Any) -> Any:
        if sizes in ([8], [8, 4, 4]):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return losses(*args)

    tight.algorithm.collate, tight.algorithm.losses = collated, limited  # type: ignore[method-assign]
    assert tight.learn([rows[:8], rows[:8]]).metrics == fits.learn([rows[:8], rows[:8]]).metrics
    assert sizes == [8, 4, 4, *[2] * 8]
    for name, tensor in fits.state()[0].items():
        assert torch.equal(tight.state()[0][name], tensor), name


def test_memory_that_a_configured_size_exceeds_is_an_error() -> None:
    learner = make_learner("algo.micro_batch_size=2")

    def none(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    learner.algorithm.losses = none  # type: ignore[method-assign]
    with pytest.raises(torch.OutOfMemoryError):
        learner.learn([windows()])


def test_a_batch_says_what_imitated_steps_show_of_their_actions_values() -> None:
    learner, (row, *_) = make_learner("algo.td_lambda=null", "algo.gamma=0.5"), windows()
    actions, taken = len(row.observations[0].actions), row.actions[0]
    known = replace(row, known=((0.5,) * actions,), bounds=(0.5,))
    batch = learner.algorithm.collate([known, replace(known, imitated=True)])
    assert batch.shown_BA.tolist() == [[UNTRIED] * actions, [0.5] * actions]
    assert learner.algorithm.collate([known, known]).shown_BA is None
    # Without a graph: the return of the action taken, 0 + 1/2 * 1 + 1/4 * 2.
    states = (row.observations[0],) * 3
    shown = replace(row, observations=states, actions=(taken,) * 2, rewards=(0.0, 1.0), return_after=2.0)
    shown = replace(shown, imitated=True)
    batch = learner.algorithm.collate([shown, row])
    returned = [1.0 if action == taken else UNTRIED for action in range(actions)]
    assert batch.shown_BA.tolist() == [returned, [UNTRIED] * actions]
    assert batch.known_BA is None


def test_what_cannot_start_over_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner()

    def none(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    learner.algorithm.losses = none  # type: ignore[method-assign]
    monkeypatch.setattr(Backend, "can_start_over", False)
    with pytest.raises(torch.OutOfMemoryError):
        learner.learn([windows()])


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_lone_rank_starts_over_unless_gradients_are_sharded(world: int, sharded: bool) -> None:
    backend = object.__new__(DeepSpeedBackend)
    backend.world, backend._sharded = world, sharded
    assert backend.can_start_over == (world == 1 and not sharded)


@pytest.mark.parametrize("settings", [[], ["model.lora.layers=1"]])
def test_a_learner_goes_on_from_a_state_and_leaves_it_as_it_was(settings: list[str]) -> None:
    learner = make_learner("algo.micro_batch_size=3", *settings)
    learner.learn([windows(), windows(reward=0.5)])
    state, kept = learner.state(), {name: tensor.clone() for name, tensor in learner.state()[0].items()}
    other = make_learner("algo.micro_batch_size=3", "seed=1", *settings)
    other.load_state(*state)
    assert other.learn([windows()]).metrics == learner.learn([windows()]).metrics
    assert other.state()[1] == learner.state()[1]
    for name, tensor in learner.state()[0].items():
        assert torch.equal(other.state()[0][name], tensor), name
        assert torch.equal(state[0][name], kept[name]), name


def test_terminal_rows_alone_have_their_reward_for_target() -> None:
    learner = make_learner()
    ended = [w for w in windows(reward=0.75) if w.terminated]
    [metrics] = learner.learn([ended * 3]).metrics
    assert metrics["target"] == pytest.approx(0.75)


def test_what_is_published_is_the_policy_that_learns() -> None:
    learner = make_learner("algo.actor_lr=0.1")
    queries = [query("Grasp any cat", STATE)]
    [before], first = learner.log_policy(queries), learner.publish(())
    learner.learn([windows()])
    [after], second = learner.log_policy(queries), learner.publish(())
    assert (first.version, second.version) == (0, 1)
    assert not np.allclose(before, after)
    assert first.files["adapter_config.json"] == second.files["adapter_config.json"]
    tensors = load(second.files["adapter_model.safetensors"])
    for name, tensor in learner.model.state().items():
        if name.startswith("lora.default."):
            assert torch.equal(tensors[name.removeprefix("lora.default.")], tensor)
    assert second.files.items() <= learner.exported().items()
    critic = load(learner.exported()["critic.safetensors"])
    assert torch.equal(critic["heads.critics.0.0.weight"], learner.model.state()["heads.critics.0.0.weight"])


def test_no_states_have_no_scores() -> None:
    assert make_learner().score([]) == []


def test_targets_follow_by_tau() -> None:
    learner = make_learner("algo.tau=0.25")
    before, target = flat(learner, "heads."), flat(learner, "target_heads.")
    assert torch.equal(before, target)
    learner.learn([windows()])
    expected = 0.75 * target + 0.25 * flat(learner, "heads.")
    torch.testing.assert_close(flat(learner, "target_heads."), expected)


def test_q_values_are_the_critics_minimum_and_do_not_depend_on_what_is_asked_beside() -> None:
    learner = make_learner("critic.num_critics=2")
    states = [query("Grasp any cat", STATE), query("Grasp any cat", Observation(STATE.text, ACTIONS[:2]))]
    both, short = learner.q_values(states)
    assert (both.shape, short.shape) == ((3,), (2,))
    packed = learner.model.pack(states[:1])
    q_CBA = learner.model.evaluate(packed).q_CBA.detach()
    assert both == pytest.approx(torch.minimum(q_CBA[0, 0], q_CBA[1, 0]).numpy(), abs=1e-5)
    assert learner.q_values(states[1:])[0] == pytest.approx(short, abs=1e-5)
    assert len(learner.q_values(states * 20)) == 40  # more than go through in one pass


def test_tensors_of_another_form_are_refused() -> None:
    learner = make_learner()
    learner.learn([windows()])
    tensors, values = learner.state()
    weight = next(name for name in tensors if name.startswith("model.heads"))
    for name, changed in (
        ("adam.0.exp_avg", tensors["adam.0.exp_avg"].flatten()),
        ("adam.0.exp_avg_sq", tensors["adam.0.exp_avg_sq"].to(torch.int32)),
        ("adam.0.step", torch.ones(2)),
        (weight, tensors[weight].to(torch.int32)),
    ):
        with pytest.raises(CheckpointError):
            learner.load_state({**tensors, name: changed}, values)
