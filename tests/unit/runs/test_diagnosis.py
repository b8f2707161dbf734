"""The diagnosis of a run, from numbers worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from sacglam import config as configuration
from sacglam.runs.diagnosis import Evidence, collapsed_start, diagnose, fit_of_q
from sacglam.types import Evaluation

RANDOM = 0.1


def config(**values: Any) -> configuration.Config:
    return configuration.parse({"steps": 800, "env": {"copies": 8}, **values})


def after(greedy: float, sampled: float, repeated: tuple[float, str] = (0.0, ""), episodes: int = 500) -> Any:
    return {
        "train": Evaluation({"overall": greedy}, None, episodes, greedy, repeated),
        "sampled": Evaluation({"overall": sampled}, None, episodes, sampled),
    }


def lines(*success: float, entropy: float = 0.5, achieved: float = 2.0) -> list[dict[str, float]]:
    """Eight lines, two for each quarter; `success` by quarter."""
    return [
        {
            "env_steps": 100 * number,
            "episode_success": success[(number - 1) // 2],
            "entropy_share": entropy,
            "goals_achieved": achieved,
        }
        for number in range(1, 9)
    ]


PPO = config(algo={"type": "ppo", "update_interval": 64})
DEMONSTRATED = config(replay={"demonstrations": "a.jsonl", "demonstration_updates": 30})
LEARNS = Evidence(
    config=config(),
    lines=lines(0.1, 0.4, 0.7, 0.9),
    env_steps=800,
    episodes=1600,
    updates=100,
    missing="",
    random_success=RANDOM,
    after=after(0.95, 0.9),
)
STUCK = replace(LEARNS, lines=lines(0.1, 0.1, 0.1, 0.12), after=after(0.3, 0.3))


def played(*episodes: tuple[bool, list[float]]) -> list[dict[str, Any]]:
    """Episodes by success and Q of the action taken, which is the second of two."""
    return [
        {"success": success, "steps": [{"q": [9.0, each], "taken": 1} for each in q]} for success, q in episodes * 10
    ]


# Discounted by 0.5 the success returns 0.25, 0.5 and 1.
FOLLOWS = played((True, [0.3, 0.4, 0.6]), (False, [0.1, 0.2, 0.1]))
MISSES = played((True, [0.1, 0.2, 0.1]), (False, [0.3, 0.4, 0.6]))
TOO_HIGH = played((True, [0.8, 0.9, 1.0]), (False, [0.6, 0.6, 0.7]))
TOO_HIGH_AND_MISSES = played((True, [0.6, 0.6, 0.7]), (False, [0.8, 0.9, 1.0]))


def of_types(**success: float) -> list[dict[str, float]]:
    """Lines of a run half of whose goals are to grow something, with the success of each type."""
    types = {f"success/{kind}": value for kind, value in success.items()}
    return [{**line, **types, "goal_share/grasp": 0.5, "goal_share/grow": 0.5} for line in lines(0.3, 0.4, 0.5, 0.5)]


LOW, HIGH = (lines(0.1, 0.1, 0.1, 0.12, entropy=share) for share in (0.01, 0.99))
CASES = {
    "no episode has ended": (
        replace(LEARNS, lines=[], episodes=0, updates=0),
        "no update has been made: no episode has ended, after 100 steps in each copy of the environment .env.copies=8",
    ),
    "no episode has ended, PPO": (
        replace(LEARNS, config=PPO, lines=[], episodes=0),
        "success is unknown: no episode has ended",
    ),
    "replay is too small": (
        replace(LEARNS, updates=0, missing="algo.batch_size is 500 and ended episodes gave 100 steps"),
        "no update has been made: algo.batch_size is 500 and ended episodes gave 100 steps, after 100 steps",
    ),
    "all updates were warm-up": (
        replace(LEARNS, updates=20),
        r"^all updates trained only the critic \(algo.warmup_updates=20\), after 100 steps",
    ),
    "no update after the initial ones": (
        replace(
            LEARNS,
            config=DEMONSTRATED,
            updates=0,
            missing="too few steps",
        ),
        "^no update has been made after the initial ones: too few steps, after 100 steps",
    ),
    "nothing achieved": (
        replace(LEARNS, lines=lines(0, 0, 0, 0, achieved=0)),
        "no goal was achieved in 1,600 episodes.*hindsight has nothing to relabel.*Step.achieved",
    ),
    "only other goals achieved, PPO": (
        replace(LEARNS, config=PPO, lines=lines(0, 0, 0, 0)),
        "none of 1,600 episodes achieved its own goal.*replay.hindsight=graph",
    ),
    "only other goals achieved, without hindsight": (
        replace(LEARNS, config=config(replay={"hindsight": "none"}), lines=lines(0, 0, 0, 0)),
        "none of 1,600 episodes achieved its own goal",
    ),
    "a type of goals is never achieved": (
        replace(LEARNS, lines=of_types(grasp=0.9, grow=0), after=after(0.5, 0.5), episodes=40),
        "of type grow, so .* raise algo.exploration or replay.random_steps, or give examples .replay.demonstrations",
    ),
    "a type of goals is never achieved, with lines of evaluations": (
        replace(
            LEARNS,
            lines=[*of_types(grasp=0.9, grow=0), *({"env_steps": 800, "eval_success/overall": 0.5} for _ in range(8))],
            after=after(0.5, 0.5),
            episodes=40,
        ),
        "of type grow, so ",
    ),
    "a type of goals is never achieved, PPO": (
        replace(LEARNS, config=PPO, lines=of_types(grasp=0.9, grow=0), after={}),
        "of type grow, so .* Add easier goals of that type, or give examples",
    ),
    "entropy at its ceiling": (
        replace(STUCK, lines=HIGH),
        "still almost random: its entropy is 99% of the random policy's, and success stays at 0.12.*target_entropy",
    ),
    "entropy at its ceiling, PPO": (
        replace(STUCK, lines=HIGH, config=PPO),
        "Raise algo.epochs or algo.actor_lr, or lower algo.entropy_coef",
    ),
    "entropy collapsed": (
        replace(STUCK, lines=LOW),
        "hardly explores: its entropy is 1% of the random policy's, and success stays at 0.12.*temperature",
    ),
    "entropy collapsed, while it trains": (
        replace(STUCK, lines=LOW, after={}),
        "hardly explores: ",
    ),
    "entropy collapsed, in few lines": (
        replace(STUCK, lines=LOW[-1:]),
        "hardly explores: ",
    ),
    "Q without relation to returns": (
        replace(STUCK, played=MISSES),
        r"Q does not predict .*: over 60 steps of 20 episodes, Q averages 0.\d\d and the return 0.\d\d .correlation "
        r"-0.\d\d.; success is 0.12. Raise algo.critic_lr, .* or algo.n_step$",
    ),
    "Q without relation to returns, entropy and hindsight": (
        replace(STUCK, played=MISSES, config=config(algo={"td_lambda": 0.9}, replay={"hindsight": "none"})),
        "Q does not predict .* or algo.n_step$",
    ),
    "Q too high": (
        replace(STUCK, played=TOO_HIGH, config=config(algo={"td_lambda": 0.9})),
        "Q is too high: over 60 steps of 20 episodes, Q averages 0.77 and the return 0.50 .* lower "
        "replay.hindsight.share, provide demonstrations .replay.demonstrations.$",
    ),
    "Q too high, and without relation to returns": (
        replace(STUCK, played=TOO_HIGH_AND_MISSES, config=config(algo={"td_lambda": 0.9})),
        "Q is too high: .* lower replay.hindsight.share, provide .*, or raise algo.critic_lr, .* or algo.n_step$",
    ),
    "Q too high, with entropy in it": (
        replace(STUCK, played=TOO_HIGH, config=config(algo={"td_lambda": None})),
        "Q is too high: .* success is 0.12. Lower algo.alpha.target_entropy",
    ),
    "greedy far below sampled": (
        replace(STUCK, after=after(0.2, 0.6, (0.8, "Go north"))),
        r"0.20, far below the 0.60 .*80% of the steps in failed episodes repeat .* 'Go north'.*prompt.history=1",
    ),
    "greedy far below sampled, without repetition": (
        replace(STUCK, after=after(0.2, 0.6)),
        "leads into loops. Raise steps or algo.updates_per_interval, set prompt.history=1",
    ),
    "greedy far below sampled, with a history": (
        replace(STUCK, after=after(0.2, 0.6), config=config(prompt={"history": 1})),
        "leads into loops. Raise steps or algo.updates_per_interval, or sample actions",
    ),
    "greedy far below sampled, since the policy is undecided": (
        replace(STUCK, lines=lines(0.1, 0.1, 0.1, 0.12, entropy=0.89), after=after(0.2, 0.6, (0.8, "Go north"))),
        r"0.20, far below the 0.60 .*80% of .*the policy is still undecided: entropy is 89% of .*"
        "Raise steps or algo.updates",
    ),
    # 0.1 a quarter: 0.6 more takes six quarters, so 2.5 budgets.
    "budget too short": (
        replace(LEARNS, lines=lines(0.1, 0.1, 0.2, 0.3), after=after(0.3, 0.3)),
        "0.10 in the second quarter of the steps and 0.30 in the last; .* 2.5 times the budget .*Raise steps to 2,000",
    ),
    "no better than random": (
        replace(STUCK, after=after(0.02, 0.12)),
        "ended at 0.02 greedy and 0.12 sampled, hardly better than the random policy's 0.10; training success was "
        "0.10 in the third quarter of the steps and 0.12 in the last. If more is possible",
    ),
    "between random and good": (
        replace(LEARNS, lines=lines(0.1, 0.5, 0.55, 0.56), after=after(0.55, 0.6)),
        "0.55 greedy and 0.60 sampled .* was 0.55 in the third quarter of the steps and 0.56 in the last",
    ),
    "in circles, sampled as well": (
        replace(LEARNS, lines=lines(0.1, 0.5, 0.55, 0.56), after=after(0.55, 0.6, (0.4, "Go north"))),
        "in the last; failed episodes go in circles .40% of their steps repeat an earlier one, most often 'Go north'",
    ),
    "no better than random, with a model made for other words": (
        replace(STUCK, after=after(0.02, 0.12), config=config(env={"name": "house:House"})),
        "random policy's 0.10. The built-in model only knows .* pretrain DIR --env house:House, then model.name=DIR",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_message_in_the_case_that_it_is_for(name: str) -> None:
    evidence, said = CASES[name]
    [message] = diagnose(evidence).values()
    assert re.search(said, message), message


@pytest.mark.parametrize("name", CASES)
def test_the_settings_that_a_message_names_exist(name: str) -> None:
    evidence, _ = CASES[name]
    [message] = diagnose(evidence).values()
    named = re.findall(r"\b(?:algo|env|policy|prompt|replay)\.[a-z_.]*[a-z]", message)
    for setting in (setting for setting in named if not setting.startswith("env.options.")):
        values: Any = config() if setting.startswith("algo.type") else evidence.config
        for part in setting.split("."):
            values = getattr(values, part)


QUIET = {
    "learns": LEARNS,
    "every type is achieved": replace(LEARNS, lines=of_types(grasp=0.9, grow=0.1), after=after(0.5, 0.5)),
    "a type had few episodes": replace(LEARNS, lines=of_types(grasp=0.9, grow=0), after=after(0.5, 0.5), episodes=39),
    "a type may still be achieved": replace(LEARNS, lines=of_types(grasp=0.9, grow=0)[:5], env_steps=500, after={}),
    "learns, and is certain": replace(LEARNS, lines=lines(0.1, 0.5, 0.9, 0.92, entropy=0.01)),
    "a random environment's optimum": replace(
        LEARNS, lines=lines(0.2, 0.6, 0.74, 0.74, entropy=0.01), after=after(0.75, 0.74), played=MISSES
    ),
    "still random, and rising": replace(
        STUCK, lines=lines(0.1, 0.1, 0.1, 0.2, entropy=0.99), after=after(0.5, 0.4), episodes=100
    ),
    "half done": replace(STUCK, lines=HIGH[:4], env_steps=400, after={}, played=MISSES),
    "Q is right": replace(STUCK, played=FOLLOWS),
    "Q is too high, but nothing was relabelled": replace(
        STUCK, played=TOO_HIGH, config=config(algo={"td_lambda": 0.9}, replay={"hindsight": "none"})
    ),
    "Q is too high, and success rises": replace(
        STUCK, lines=lines(0.1, 0.1, 0.2, 0.4), played=TOO_HIGH, config=config(algo={"td_lambda": 0.9}), after={}
    ),
    "twice the budget would do": replace(LEARNS, lines=lines(0.1, 0.2, 0.4, 0.6), after=after(0.6, 0.6)),
    "a rise within the noise": replace(LEARNS, lines=lines(0.1, 0.1, 0.2, 0.3), after=after(0.3, 0.3), episodes=100),
    "few evaluation episodes": replace(STUCK, after=after(0.3, 0.6, episodes=20)),
    "random play is good already": replace(
        STUCK, lines=lines(0.95, 0.95, 0.95, 0.95), random_success=0.95, after=after(0.85, 0.95)
    ),
    "initial updates count towards the warm-up": replace(LEARNS, config=DEMONSTRATED, updates=1),
    "nothing yet": replace(LEARNS, lines=[], env_steps=0, episodes=0, updates=0, after={}),
}


@pytest.mark.parametrize("name", QUIET)
def test_no_cause_is_named_without_a_case_for_it(name: str) -> None:
    evidence = QUIET[name]
    good = not evidence.after or max(each.success["overall"] for each in evidence.after.values()) >= 0.9
    assert list(diagnose(evidence)) == ([] if good else ["_short_of_good"])


def test_a_cause_hides_what_follows_from_it() -> None:
    evidence = replace(STUCK, lines=lines(0, 0, 0, 0, entropy=0.99, achieved=0), after=after(0.0, 0.0))
    assert list(diagnose(evidence)) == ["_nothing_achieved"]


def test_a_policy_that_hardly_explores_from_the_start() -> None:
    assert collapsed_start(0.2, 0.9) is None
    assert "mean entropy in initial states is 0.100 nats, the random policy's 0.900" in str(collapsed_start(0.1, 0.9))


def test_correlation_of_q_with_returns() -> None:
    exact = played((True, [0.25, 0.5, 1.0]), (False, [0.0, 0.0, 0.0]))
    assert fit_of_q(exact, 0.5) == (pytest.approx(1.0), *(pytest.approx(1.75 / 6),) * 2, 60)
    inverse = played((True, [-0.25, -0.5, -1.0]), (False, [0.0, 0.0, 0.0]))
    assert fit_of_q(inverse, 0.5) == (pytest.approx(-1.0), pytest.approx(-1.75 / 6), pytest.approx(1.75 / 6), 60)
    constant = played((True, [0.3, 0.3, 0.3]), (False, [0.3, 0.3, 0.3]))
    assert fit_of_q(constant, 0.5) == (0.0, pytest.approx(0.3), pytest.approx(1.75 / 6), 60)


def test_too_few_episodes_for_a_correlation() -> None:
    exact = played((True, [0.25, 0.5, 1.0]), (False, [0.0, 0.0, 0.0]))
    assert fit_of_q(exact[:16], 0.5) is None  # 48 steps
    assert fit_of_q(exact[::2] * 2 + exact[1:4:2], 0.5) is None  # two failures
    assert fit_of_q((), 0.5) is None
