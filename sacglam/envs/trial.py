"""Plays random episodes, and an expert's, to check an environment's contract and see what there is to learn from."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from math import log
from random import Random
from statistics import fmean, median
from typing import Any, get_args

from sacglam.envs.base import SPLITS, Split, TextEnv
from sacglam.envs.checks import CheckedEnv, check_types
from sacglam.envs.conversion import shown
from sacglam.errors import EnvironmentContractError
from sacglam.types import Decision, Episode, Observation, Step

_EPISODES, _HELDOUT_EPISODES, _STEPS = 8, 4, 50
_CONTEXT = 50  # characters shown before the first difference between two answers, and twice as many after it
_NAMED = 3  # examples of goals never achieved
_HARM = {
    "the working directory": "where the run's files would end up; have it use absolute paths, start its processes with "
    "cwd=, or set env.workers",
    "torch's default dtype": "in which the agent would compute; have it pass dtype= to its tensors",
    "torch's grad mode": "so that nothing would be learnt; have it use `with torch.no_grad():`",
}


@dataclass(frozen=True)
class Trial:
    """The results of a trial."""

    episodes: int
    steps: int
    successes: int
    goals: int
    """Training goals."""
    most_actions: int
    others_achieved: int
    """Distinct goals achieved in episodes with a different goal."""
    longest: int
    """Length of the longest episode, in steps."""
    notes: tuple[str, ...]
    """What the environment says about itself."""
    findings: tuple[str, ...]
    """What the trial says about learning in this environment, as lines of text."""


def check_env(
    make_env: Callable[[], TextEnv],
    episodes: int = _EPISODES,
    repeats: bool = True,
    steps: int = _STEPS,
    expert: bool = True,
) -> Trial:
    """Play random episodes in two copies in parallel, checking them against the contract and each other.

    Episodes still running after `steps` steps are cut off there. With `expert`, those in which the environment's
    expert, if any, knows a first action are replayed with its advice.

    Before each one, the second copy plays one step of a different episode, which must make no difference. If `repeats`
    is false, the environment need not be reproducible and there is only one copy. In your own tests:
    `check_env(House, 100)`.

    Raises:
        EnvironmentContractError: the contract is broken, or the copies differ.
    """
    before = _process_state()
    made = [make_env() for _ in range(2 if repeats else 1)]
    copies = [env if isinstance(env, CheckedEnv) else CheckedEnv(env, type(env).__name__) for env in made]
    first, *others = copies
    goals, rng = _goals(copies), Random(0)
    played = []
    for number in range(episodes):
        goal, seed = goals[rng.randrange(len(goals))], rng.randrange(2**31)
        first.goal_type(goal)
        for other in others:
            other.reset(goals[0], number)
            other.step(0)
        played.append(_play(copies, goal, seed, rng, steps))
    guided = []
    for episode in played if expert else []:
        first.reset(episode.goal, episode.seed)
        if first.expert() is not None:
            guided.append(_play(copies, episode.goal, episode.seed, rng, steps, expert=True))
    heldout = first.goals("heldout")
    for goal in rng.sample(heldout, min(_HELDOUT_EPISODES, len(heldout))):  # a run plays these only at its end
        first.goal_type(goal)
        _play(copies, goal, rng.randrange(2**31), rng, steps)
    for what, now in _process_state().items():
        if now != before[what]:
            raise EnvironmentContractError(
                f"the environment changed {what} from {before[what]} to {now}, {_HARM[what]}"
            )
    others_achieved = {goal for e in played for step in e.steps for goal in step.achieved if goal != e.goal}
    check_types(sorted(others_achieved), first.goal_type, sorted(set(map(first.goal_type, goals))))
    return Trial(
        episodes=len(played),
        steps=sum(len(e.steps) for e in played),
        successes=sum(e.success for e in played),
        goals=len(goals),
        most_actions=max(len(e.observation(t).actions) for e in played for t in range(len(e.steps))),
        others_achieved=len(others_achieved),
        longest=max(len(e.steps) for e in played),
        notes=tuple(first.notes()),
        findings=(*_findings(first, played, others_achieved, steps), *_of_success(first, played, guided)),
    )


def _findings(env: CheckedEnv, played: Sequence[Episode], others: Set[str], most_steps: int) -> Iterator[str]:
    goals, heldout = env.goals("train"), env.goals("heldout")
    longest = max(len(e.steps) for e in played)
    if cut := sum(not (e.steps[-1].terminated or e.steps[-1].truncated) for e in played):
        yield f"Episodes still going after step {longest:,}, the limit of this check: {cut}."
    else:
        yield f"Steps of the longest episode: {longest:,}."
    if env.own_rewards:
        returns = [e.return_ for e in played]
        spread = f"from {min(returns):,.4g} to {max(returns):,.4g}"
        yield f"Return of a random episode: {fmean(returns):,.4g} on average, {spread}."
    first = [min(times) for e in played if (times := [t for t, step in enumerate(e.steps, 1) if step.achieved])]
    if first:
        yield f"Episodes that achieved a goal: {len(first)}; median step of the first: {median(first):g}."
    achieved = {goal for e in played for step in e.steps for goal in step.achieved}
    if never := [goal for goal in goals if goal not in achieved]:
        some = ", ".join(map(shown, never[:_NAMED]))
        intended = ", as in a task without success" if env.own_rewards and not achieved else ""
        yield f"Never achieved: {len(never):,} of {len(goals):,} training goals, such as {some}{intended}."
    repeated = _repeated(played)
    if different := [difference for difference in repeated.values() if difference]:
        yield (
            f"Of {len(repeated):,} actions taken more than once in a state that reads the same, {len(different):,} had "
            f"different consequences: {different[0]}. Either chance decides or the text hides something. Raise "
            "algo.gamma to 0.95 or more, because safe paths to a goal are longer. If an earlier step shows what is "
            "hidden, set prompt.history, or put it into the observation."
        )
    if not env.own_rewards:
        yield from _hindsight(played, others, most_steps)
    if both := {*heldout} & {*goals}:
        yield f"Goals that are training and held-out goals at once: {len(both):,}, such as {shown(min(both))}."
    if listed := others & {*heldout} - both:
        yield (
            f"Held-out goals listed in achieved under other goals: {len(listed):,}, such as {shown(min(listed))}. "
            "Hindsight learns from what is listed, so these are not held out: list them in their own episodes only."
        )


def _of_success(env: CheckedEnv, played: Sequence[Episode], guided: Sequence[Episode]) -> Iterator[str]:
    """What the environment's own rewards pay for success, which hindsight must know, and what its expert reaches."""
    paid = [e.steps[-1].reward for e in (*played, *guided) if e.success]
    if env.own_rewards and paid:
        least, most = min(paid), max(paid)
        spread = f"{least:,.4g}" if least == most else f"from {least:,.4g} to {most:,.4g}"
        yield f"Reward of the step that achieves the goal: {spread} (compare env.success_reward)."
    if guided:
        success, mean = sum(e.success for e in guided), fmean(e.return_ for e in guided)
        returns = f", with a return of {mean:,.4g} on average" if env.own_rewards else ""
        yield f"The environment's expert succeeded in {success} of {len(guided)} episodes{returns}."


def _play(
    copies: Sequence[TextEnv], goal: str, seed: int, rng: Random, most_steps: int, expert: bool = False
) -> Episode:
    """An episode of random actions, or of the expert's where it knows one."""
    where = f"goal {goal!r}, seed {seed}"
    start = observation = _agreed([copy.reset(goal, seed) for copy in copies], f"at the start of {where}")
    copies[0].optimal_length()
    decisions: list[Decision] = []
    steps: list[Step] = []
    while len(steps) < most_steps and not (steps and (steps[-1].terminated or steps[-1].truncated)):
        advised, drawn = copies[0].expert() if expert else None, rng.randrange(len(observation.actions))
        taken = drawn if advised is None else advised
        decisions.append(Decision(taken, -log(len(observation.actions)), version=0))
        answers = [copy.step(decisions[-1].action) for copy in copies]
        steps.append(_agreed(answers, f"after {len(decisions)} steps of {where}"))
        observation = steps[-1].observation
    return Episode(goal, start, tuple(decisions), tuple(steps), seed)


def _repeated(played: Sequence[Episode]) -> dict[tuple[Observation, int], str]:
    """Actions taken more than once in states with the same text, and how their consequences differed, if at all.

    Achievements are compared only under the same goal, since some environments list no others. Episode ends are not
    compared: they depend on the goal and the number of steps.
    """
    led: dict[tuple[Observation, int], Observation] = {}
    gained: dict[tuple[str, Observation, int, bool], tuple[set[str], set[str]]] = {}
    repeated: dict[tuple[Observation, int], str] = {}
    for episode in played:
        before: set[str] = set()  # achieved earlier in the episode, so not listed again
        been = {episode.observation(0).text}
        for t, step in enumerate(episode.steps):
            seen, action = episode.observation(t), episode.decisions[t].action
            achieved, here = {*step.achieved}, step.observation.text
            back = here != seen.text and here in been
            if back:  # other goals may have held from the start, and then need not be listed
                achieved &= {episode.goal}
            differences = []
            if not (step.terminated or step.truncated):
                if (seen, action) in led:
                    followed = (led[seen, action], step.observation)
                    first, second = _differing(*(f"{each.text!r} {[*each.actions]}" for each in followed))
                    differences.append(f"led to {first} and to {second}" if first != second else "")
                led.setdefault((seen, action), step.observation)
            earlier, had = gained.setdefault((episode.goal, seen, action, back), (achieved, before))
            if earlier is not achieved:
                some = sorted((achieved - earlier - had) | (earlier - achieved - before))
                differences.append(f"achieved {some[0]!r} and did not, with the goal {episode.goal!r}" if some else "")
            for difference in differences:
                said = difference and f"{seen.actions[action]!r} in {seen.text[: 3 * _CONTEXT]!r} {difference}"
                repeated[seen, action] = repeated.get((seen, action)) or said
            before = before | {*step.achieved}
            been.add(here)
    return repeated


def _process_state() -> dict[str, str]:
    """Process-wide state that an environment may change."""
    torch = sys.modules.get("torch")
    dtype, gradients = (torch.get_default_dtype(), torch.is_grad_enabled()) if torch else ("torch.float32", True)
    return dict(zip(_HARM, (os.getcwd(), str(dtype), str(gradients)), strict=True))


def _goals(copies: Sequence[CheckedEnv]) -> Sequence[str]:
    """The training goals, after checking that the copies agree on all goals.

    Tasks are checked here because a run only asks for them at its end.
    """
    first, *others = copies
    for split in get_args(Split):
        if any(list(first.goals(split)) != list(other.goals(split)) for other in others):
            raise EnvironmentContractError(
                f"two copies of the environment list different {SPLITS[split]} goals; give them a fixed order"
            )
    first.tasks()
    return first.goals("train")


def _hindsight(played: Sequence[Episode], others: Set[str], most_steps: int) -> Iterator[str]:
    """Whether hindsight has nothing to relabel, or is the only thing to learn from."""
    succeeded, where = any(e.success for e in played), f"in {len(played)} random episodes of at most {most_steps} steps"
    if not succeeded and not others:
        yield (
            f"No goal at all was achieved {where}: there is no reward, and hindsight has nothing to relabel. Add goals "
            "that random play reaches, list them in Step.achieved when it does, or allow more steps."
        )
    elif not succeeded:
        yield (
            f"No episode achieved its own goal {where}, while {len(others):,} other goals were achieved: without "
            "hindsight (replay.hindsight; PPO has none) there may be nothing to learn from."
        )
    elif not others:
        yield (
            f"Hindsight has nothing to relabel: no step achieved any goal but its episode's own {where}. List in "
            "Step.achieved every goal that a step fulfils, whichever goal the episode pursues."
        )


def _agreed(answers: list[Any], when: str) -> Any:
    """The answer that all copies agree on."""
    if answers[0] != answers[-1]:
        said = _differing(repr(answers[0]), repr(answers[-1]))
        raise EnvironmentContractError(
            f"the environment does not repeat itself: {when}, one copy answers {said[0]}, another {said[1]}. "
            "Seed every random generator in reset, from its seed argument; or set env.repeats to false "
            "(sacglam envs --check NAME --set env.repeats=false), and train without exact resume"
        )
    return answers[0]


def _differing(*texts: str) -> list[str]:
    start = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), 0) - _CONTEXT
    return [f"...{text[max(start, 0) :][: 3 * _CONTEXT]}..." for text in texts]
