"""One rank of the DeepSpeed tests: `python -m tests.integration.rank RANK WORLD FOLDER STAGE...`.

Goes through the same trials with each of these ZeRO stages. What it found is left in the folder, for test_deepspeed.py.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from sacglam import config
from sacglam.build import build_learner, build_model
from sacglam.clock import PhaseClock
from sacglam.config import Config
from sacglam.errors import CheckpointError, DivergenceError
from sacglam.learner import deepspeed
from sacglam.learner.learner import Learner
from sacglam.prompt import query
from sacglam.resolve import on_this_machine
from sacglam.types import Observation, Window

UPDATES, HALF = 5, 3  # the actor learns from the third on
TIMEOUT_S = 61.0
# 7 rows are 4 and 3 on two ranks, in two and in one micro-batch of 3: the second rank's other one is a filler.
SETTINGS = [
    "threads=1",
    "critic.hidden=[16]",
    "critic.target_backbone=adapter",
    "env.copies=1",
    "algo.update_interval=1",
    "algo.batch_size=7",
    "algo.micro_batch_size=3",
    "algo.warmup_updates=2",
    "algo.max_grad_norm=0.5",
    "algo.lr_decay=true",  # over 40 x 10 updates
    "algo.updates_per_interval=10",
    "algo.actor_lr=1e-4",
    "algo.critic_lr=3e-4",
    "steps=40",
    "model.lora.rank=4",
]
VARIANTS = {
    "encoder-decoder": ["model.name=builtin-t5"],
    "checkpointed": ["model.gradient_checkpointing=true"],
    "frozen": ["critic.backbone=frozen"],
    # Adam's first step turns the rounding of a gradient near 0, which differs by CPU, into a tenth of the rate.
    "separate": ["critic.backbone=separate", "algo.critic_lr=1e-4"],
    **({"nf4": ["model.quantize=nf4"]} if find_spec("bitsandbytes") else {}),
}
# With an encoder-decoder ZeRO-3 is slow in these small pieces; test_distributed.py has that.
VARIANTS_AT = {0: [*VARIANTS], 3: [name for name in VARIANTS if name != "encoder-decoder"]}
STATES = [
    Observation(f"You see: baby red cat, blue water\nYou are on: {place}\nInventory: empty", actions)
    for place, actions in (
        ("nothing", ("Grasp", "Go to baby red cat", "Go to blue water")),
        ("baby red cat", ("Grasp", "Go to blue water")),
        ("blue water", ("Go to baby red cat",)),
    )
]


def make_learner(config: Config) -> Learner:
    return build_learner(config, build_model(config), PhaseClock())


def settings(world: int, stage: int, *overrides: str) -> Config:
    """The configuration of a rank; with `world` 0 of plain torch."""
    ranks = [f"learners.count={world}", f"learners.zero_stage={stage}"]
    return on_this_machine(config.load(None, [*SETTINGS, *ranks, *overrides]))


def batch(number: int) -> list[Window]:
    """Seven windows of one step, some of them terminal; another batch for each number."""
    rows = []
    for row in range(7):
        state, following = STATES[(number + row) % 3], STATES[(number + 2 * row + 1) % 3]
        ended = (number + row) % 4 == 0
        action = (number * row) % len(state.actions)
        rows.append(Window("Grasp any cat", (state, following), (action,), (float(ended),), ended, "hindsight"))
    return rows


BATCHES = [batch(number) for number in range(UPDATES)]
QUERIES = [query("Grasp any cat", state) for state in STATES]
# Even rows are the first rank's, odd ones the second's: the second's all end.
ONE_SIDED = [replace(row, terminated=index % 2 == 1) for index, row in enumerate(batch(1))]
BROKEN = [replace(row, rewards=(float("inf") if index == 1 else 0.0,)) for index, row in enumerate(batch(2))]


State = tuple[dict[str, torch.Tensor], dict[str, Any]]


def trials(world: int, stage: int, saved: State | None = None) -> dict[str, Any]:
    """Updates and their half-way state; a resume from it and from one `saved` elsewhere; faults; the files."""
    learner = make_learner(settings(world, stage))
    found: dict[str, Any] = {"metrics": learner.learn(BATCHES[:HALF]).metrics, "half": learner.state()}
    found["metrics"] += learner.learn(BATCHES[HALF:]).metrics
    found["whole elements"] = sum(p.numel() for p in learner.model.module.parameters())
    found["end"] = learner.state()
    found["adapter"], found["exported"] = learner.publish(()), learner.exported()
    found["log_policy"] = learner.log_policy(QUERIES)
    found["resumed"] = resumed(world, stage, found["half"])
    found["resumed elsewhere"] = resumed(world, stage, saved) if saved else None
    found["after fault"] = after_fault(learner)
    found["one-sided"] = learner.learn([ONE_SIDED]).metrics
    found["another form"] = another_form(learner, found["half"])
    return found


def resumed(world: int, stage: int, state: State) -> State:
    """The state at the end when a new learner goes on from `state`."""
    learner = make_learner(settings(world, stage))
    learner.load_state(*state)
    learner.learn(BATCHES[HALF:])
    return learner.state()


def after_fault(learner: Learner) -> tuple[str, Any]:
    """What a batch with an infinite reward in one rank's share raises here, and the state after it."""
    try:
        learner.learn([BROKEN])
    except DivergenceError as error:
        return str(error), learner.state()
    return "nothing was raised", None


def another_form(learner: Learner, state: State) -> str:
    """What Adam's moments of another form raise."""
    tensors, values = state
    name = next(name for name in tensors if name.endswith("exp_avg"))
    try:
        learner.load_state({**tensors, name: tensors[name].flatten()[1:]}, values)
    except CheckpointError as error:
        return str(error)
    return "nothing was raised"


def variant(world: int, stage: int, name: str) -> Any:
    """Metrics of a few updates with another critic: warm-up, the actor's first update, and what follows from it."""
    return make_learner(settings(world, stage, "algo.warmup_updates=1", *VARIANTS[name])).learn(BATCHES[:3]).metrics


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    stages = [int(stage) for stage in sys.argv[4:]]
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "model.quantize nf4")  # on CPUs where bitsandbytes gets 96 wide layers wrong
    deepspeed.PERSISTENT_ELEMENTS = 0  # so that even the smallest weights are sharded
    deepspeed.init_distributed(rank, world, f"file://{folder}/meeting-{world}", "cpu", timeout_s=TIMEOUT_S)
    saved = pickle.loads((folder / "saved.pkl").read_bytes())
    found: dict[Any, Any] = {stage: trials(world, stage, saved.get(stage)) for stage in stages}
    found["timeout_s"] = timeout_s()
    if world > 1:
        found |= {(stage, name): variant(world, stage, name) for stage in stages for name in VARIANTS_AT[stage]}
        found["alone"] = alone(rank, world)
    (folder / f"{world}-{rank}.pkl").write_bytes(pickle.dumps(found))


def timeout_s() -> float:
    """How long ZeRO's collectives wait for a rank."""
    from deepspeed.utils import groups

    options = groups._get_data_parallel_group()._get_backend(torch.device("cpu")).options
    return float(options._timeout.total_seconds())


def alone(rank: int, world: int) -> str:
    """What rank 0's update raises when the others are gone."""
    learner = make_learner(settings(world, 0))
    if rank:
        return "gone"
    try:
        learner.learn(BATCHES[:1])
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


if __name__ == "__main__":
    main()
