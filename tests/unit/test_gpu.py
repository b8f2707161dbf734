"""Updates on a fake GPU: as on the CPU to the last bit, with few host waits; and mix-ups of devices are noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import Tensor, nn
from transformers import PreTrainedModel

from sacglam import config
from sacglam.algos import sac
from sacglam.build import build_learner, build_model
from sacglam.clock import PhaseClock
from sacglam.config.sections import ModelConfig
from sacglam.learner.backend import Backend
from sacglam.learner.learner import Learner
from sacglam.models import architectures
from sacglam.models.agent_model import AgentModel
from sacglam.models.loading import load_model
from sacglam.models.packed_lm import ACTOR
from sacglam.models.packing import Packed
from sacglam.prompt import query
from sacglam.resolve import on_this_machine
from sacglam.types import Observation, Window
from tests.conftest import SIMPLE_PPO
from tests.fake_gpu import FakeGpu, MixUp, fake_gpu

ACTIONS = ("Grasp", "Go to baby red cat", "Go to blue water")
STATE = Observation("You see: baby red cat, blue water\nYou are on: nothing\nInventory: empty", ACTIONS)
NEXT = Observation("You see: baby red cat, blue water\nYou are on: baby red cat\nInventory: empty", ACTIONS[:2])
ENDED = Window("Grasp any cat", (STATE, NEXT), (0,), (1.0,), True, "hindsight")
GOING = Window("Grasp blue water", (STATE, NEXT, STATE), (1, 0), (0.0, 0.0), False, "real", 0.5)
WINDOWS = [ENDED, GOING, GOING, ENDED, GOING]
PLAYED = Window("Grasp any cat", (STATE, NEXT, STATE, NEXT), (1, 0, 1), (0.0, 0.0, 1.0), True, "real")
SAC = ["algo.warmup_updates=1", "algo.micro_batch_size=3", "critic.target_backbone=adapter"]
PPO = ["algo.type=ppo", "algo.epochs=2", "algo.batch_size=3", "algo.micro_batch_size=2", "algo.update_interval=6"]
MOST_WAITS = 3  # an update; of PPO's interval one more, for its advantages

VARIANTS: dict[str, list[str]] = {
    "sac": SAC,
    "sac t5": [*SAC, "model.name=builtin-t5"],
    "sac windows": [*SAC, "algo.td_lambda=0.9", "algo.self_imitation=1"],
    "sac windows, online target": [*SAC, "critic.target_backbone=online", "algo.td_lambda=0.9"],
    "sac lean": [*SAC, "model.lora.layers=1"],
    "ppo": PPO,
    "sac bfloat16, separate backbone": [*SAC, "model.dtype=bfloat16", "critic.backbone=separate"],
    "sac float32 unmerged, clipped": [*SAC, "model.lora.rank=4", "algo.max_grad_norm=0.1"],
    "sac frozen backbone": [*SAC, "critic.backbone=frozen"],
    "sac gradient checkpointing": [*SAC, "model.lora.rank=4", "model.gradient_checkpointing=true"],
    "sac t5 bfloat16": [*SAC, "model.name=builtin-t5", "model.dtype=bfloat16"],
    "ppo t5": [*PPO, "model.name=builtin-t5"],
    "ppo bfloat16": [*PPO, "model.dtype=bfloat16"],
}
QUICK = ("sac", "sac windows", "ppo")


def make(device: str, settings: Sequence[str]) -> Learner:
    plain = ["threads=1", "env.copies=1", "critic.hidden=[16]", *settings]
    base = SIMPLE_PPO if PPO[0] in settings else None
    resolved = on_this_machine(config.load(base, [*plain, f"device={device}"]))
    model = build_model(resolved)
    # What is derived from the device, or it would show.
    model.lm.bucket = 1
    for part in model.lm.module.modules():
        if isinstance(part, PreTrainedModel):
            part.config._attn_implementation = "sdpa"
    return build_learner(resolved, model, PhaseClock())


def interval(learner: Learner) -> list[dict[str, float]]:
    ppo = learner.algorithm.__class__.__name__ == "Ppo"
    return learner.learn([[PLAYED, PLAYED]] if ppo else [WINDOWS, WINDOWS[::-1]]).metrics


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in VARIANTS])
def test_updates_are_the_cpus_to_the_last_bit_and_wait_at_most_three_times(name: str) -> None:
    settings, queries = VARIANTS[name], [query("Grasp any cat", STATE), query("Grasp blue water", NEXT)]
    with fake_gpu() as gpu:
        learner = make("cuda", settings)
        metrics = interval(learner)
        gpu.waits.clear()
        again = interval(learner)
        waits = dict(gpu.waits)
        policy, state = learner.log_policy(queries), learner.state()[0]
    assert sum(waits.values()) <= MOST_WAITS * len(again) + name.startswith("ppo"), waits
    cpu = make("cpu", settings)
    assert interval(cpu) == metrics
    assert interval(cpu) == again
    assert state.keys() == cpu.state()[0].keys()
    assert [k for k, tensor in cpu.state()[0].items() if not torch.equal(tensor, state[k])] == []
    assert all((a == b).all() for a, b in zip(policy, cpu.log_policy(queries), strict=True))


@pytest.fixture(scope="module")
def trained() -> tuple[FakeGpu, Learner]:
    """A learner on the GPU, after an update."""
    with fake_gpu() as gpu:
        learner = make("cuda", [*SAC, "algo.warmup_updates=0", "model.lora.rank=4"])
        learner.learn([WINDOWS])
    return gpu, learner


def _update_and_score(learner: Learner) -> None:
    learner.learn([WINDOWS])
    learner.log_policy([query("Grasp any cat", STATE)])


def _on_cpu(patch: pytest.MonkeyPatch, parameter: nn.Parameter) -> None:
    patch.setattr(parameter, "data", parameter.data.cpu())


def _stays(patch: pytest.MonkeyPatch, field: str) -> None:
    """One field of a packed batch is left on the CPU."""
    to = Packed.to

    def moved(packed: Any, device: torch.device) -> Any:
        batch = to(packed, device)
        object.__setattr__(batch, field, getattr(packed, field))
        return batch

    patch.setattr(Packed, "to", moved)


def _moments(patch: pytest.MonkeyPatch, learner: Learner) -> None:
    assert isinstance(learner.backend, Backend)
    state = next(iter(learner.backend.optimizer.state.values()))
    patch.setitem(state, "exp_avg", state["exp_avg"].cpu())


def _tensors(patch: pytest.MonkeyPatch, kind: Callable[[Tensor], bool]) -> None:
    """`AgentModel.tensor` leaves tensors of a kind on the CPU."""
    sent = AgentModel.tensor

    def tensor(model: AgentModel, values: Any, dtype: torch.dtype | None = None) -> Tensor:
        found = sent(model, values, dtype)
        return found.cpu() if kind(found) else found

    patch.setattr(AgentModel, "tensor", tensor)


def _made_on_cpu(patch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    made = getattr(module, name)
    patch.setattr(module, name, lambda *args: made(*args).cpu())


def _metric(patch: pytest.MonkeyPatch) -> None:
    losses = sac.Sac.losses

    def with_number(*args: Any) -> Any:
        loss, metrics = losses(*args)
        return loss, {**metrics, "q": torch.tensor(0.5)}

    patch.setattr(sac.Sac, "losses", with_number)


MIXUPS: dict[str, Callable[[pytest.MonkeyPatch, Learner], None]] = {
    "token ids": lambda patch, learner: _stays(patch, "ids_BS"),
    "scored tokens": lambda patch, learner: _stays(patch, "token_id_N"),
    "which actions exist": lambda patch, learner: _stays(patch, "actions_BA"),
    "attention mask": lambda patch, learner: _made_on_cpu(patch, architectures, "attention_mask"),
    "actions and rows that bootstrap": lambda patch, learner: _tensors(patch, lambda t: t.dtype == torch.int64),
    "rewards and discounts": lambda patch, learner: _tensors(patch, lambda t: t.is_floating_point()),
    "a LoRA matrix": lambda patch, learner: _on_cpu(patch, learner.model.actor_parameters()[0]),
    "a head of the critic": lambda patch, learner: _on_cpu(patch, learner.model.critic_parameters()[-1]),
    "a target network's matrix": lambda patch, learner: _on_cpu(patch, learner.model.learned()[-1]),
    "the output layer": lambda patch, learner: _on_cpu(patch, learner.model.lm.module[1].weight),
    "Adam's moments": _moments,
    "a metric, a number": lambda patch, learner: _metric(patch),
    "scores read without a copy": lambda patch, learner: patch.setattr(Tensor, "cpu", lambda tensor: tensor),
}


@pytest.mark.parametrize("name", MIXUPS)
def test_a_planted_mix_up_raises(name: str, trained: tuple[FakeGpu, Learner], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, learner = trained
    with fake_gpu(gpu), monkeypatch.context() as patch:
        MIXUPS[name](patch, learner)
        with pytest.raises(MixUp):
            _update_and_score(learner)


def test_waits_are_counted_by_name() -> None:
    with fake_gpu() as gpu:
        x = torch.arange(4.0, device="cuda")
        row = torch.tensor([1, 2]).pin_memory().to("cuda", non_blocking=True)
        x[row] = 0.0
        x.mul_(2)
        x[x > 5] = 1.0  # filled, without the places of the mask
        assert gpu.waits.total() == 0
        assert x.sum().item() == 1.0
        assert x[x > 0].tolist() == [1.0]
        assert torch.tensor([3.0]).to("cuda", non_blocking=True).is_cuda
        assert bool((torch.where(x > 0, 0.0, x) == 0).all())
        assert x.new_tensor([1.0]).cpu().device.type == "cpu"
    assert gpu.waits == {
        "item": 2, "index by a mask": 1, "tolist": 1, "copy to the GPU": 1, "where of a number": 1,
        "tensor from numbers": 1, "copy to the host": 1,
    }  # fmt: skip


def test_an_adapter_leaves_the_gpu_in_one_copy(trained: tuple[FakeGpu, Learner]) -> None:
    gpu, learner = trained
    with fake_gpu(gpu):
        gpu.waits.clear()
        adapter = learner.publish(())
    assert gpu.waits == {"copy to the host": 1}
    tensors = load(adapter.files["adapter_model.safetensors"])
    assert len(tensors) > 1
    for name, parameter in learner.model.lm.adapter_parameters(ACTOR).items():
        assert torch.equal(tensors[name], parameter.cpu())


def test_a_model_is_read_onto_the_gpu_tensor_by_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreTrainedModel, "to", lambda model, device: model)  # what moves a whole model
    with fake_gpu():
        model = load_model(ModelConfig(), torch.device("cuda")).model
        assert all(tensor.is_cuda for tensor in (*model.parameters(), *model.buffers()))


def test_attention_is_not_cudnns_which_plans_for_each_new_shape() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    make("cpu", SAC)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    with fake_gpu():
        make("cuda", SAC)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
