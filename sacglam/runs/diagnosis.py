"""Diagnoses a run that does not learn. Each message gives the evidence, the likely cause and a remedy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sacglam.config import Config
from sacglam.types import Evaluation

CHECKS = (0.5, 0.75)
"""Shares of the budget after which a training run is diagnosed. The first check only looks for missing experience."""
PLAYED = 32
"""Number of episodes in which Q is compared with the return."""
_GOOD = 0.9  # success that needs no diagnosis
_MARGIN = 0.05  # gain in success over the random policy or an earlier quarter of the run
_COLLAPSED_START, _COLLAPSED, _UNDECIDED, _CEILING = 0.2, 0.05, 0.6, 0.95  # shares of the random policy's entropy
_CORRELATED, _TOO_HIGH, _LEAST_STEPS, _LEAST_EPISODES = 0.1, 0.15, 50, 3
_CIRCLES = 0.3  # share of the steps in failed episodes
_GAP = 0.15  # how far greedy success may fall below sampled
_EPISODES_OF_A_TYPE = 20  # if all of these fail, the type counts as out of reach
_TOO_SHORT = 1.5  # times the budget: it is too short for a run that needs more
_OPEN = "policy.temperature=auto or policy.length_normalised=true"


@dataclass(frozen=True)
class Evidence:
    """What a diagnosis is based on."""

    config: Config
    lines: Sequence[Mapping[str, Any]]
    """Lines of metrics.jsonl."""
    env_steps: int
    episodes: int
    updates: int
    missing: str
    """What the experience still lacks for an update; empty if nothing."""
    random_success: float
    after: Mapping[str, Evaluation]
    """The final evaluations, `train` (greedy) and `sampled`; empty during training."""
    played: Sequence[Mapping[str, Any]] = ()
    """Episodes in the form of samples.jsonl, for comparing Q with the return."""

    def mean(self, name: str, quarter: int) -> float | None:
        """Mean of a metric over the lines of one quarter (1 to 4) of the steps taken; None if there are none."""
        start, end = (self.env_steps * each / 4 for each in (quarter - 1, quarter))
        values = [line[name] for line in self.lines if name in line and start < line["env_steps"] <= end]
        return sum(values) / len(values) if values else None

    @property
    def success(self) -> tuple[float, float] | None:
        """Training success in the third and last quarters of the steps; None if no episode ended in the last.

        If none ended in the third, the last is repeated, which counts as no rise.
        """
        earlier, now = self.mean("episode_success", 3), self.mean("episode_success", 4)
        return None if now is None else (now if earlier is None else earlier, now)

    @property
    def late(self) -> bool:
        """Whether it is late enough to rule out a slow start."""
        return self.env_steps >= CHECKS[-1] * self.config.steps

    @property
    def low(self) -> bool:
        """Whether success is low, late in the run."""
        if not self.late or self.config.env.reward == "environment" or self.success is None:
            return False
        return self.success[1] < min(_GOOD, max(0.5, self.random_success + _MARGIN))

    @property
    def stuck(self) -> bool:
        """Whether success is low and not rising, late in the run."""
        return self.low and self.success is not None and self.success[1] - self.success[0] < _MARGIN


def diagnose(evidence: Evidence) -> dict[str, str]:
    """Messages by rule name; from a final greedy success of 0.9 on, only those about missing experience."""
    own_rewards = evidence.config.env.reward == "environment"  # then the agent need not learn to succeed
    for rules in (
        ((_no_experience,),) if own_rewards else (_ROOTS, _RULES, (_short_of_good,))
    ):  # earlier causes explain later symptoms
        if messages := {rule.__name__: message for rule in rules if (message := rule(evidence))}:
            return messages
        if evidence.after and evidence.after["train"].success["overall"] >= _GOOD:
            break
    return {}


def collapsed_start(entropy: float, uniform: float) -> str | None:
    """A warning if the untrained policy barely explores, given its mean entropy and the random policy's, in nats."""
    if entropy >= _COLLAPSED_START * uniform:
        return None
    return (
        f"the untrained policy hardly explores: its mean entropy in initial states is {entropy:.3f} nats, the "
        f"random policy's {uniform:.3f}. It will learn little. Make a model that knows the environment's words "
        f"(sacglam pretrain DIR --env NAME, then model.name=DIR), set {_OPEN}, or name the possible actions in the "
        "observations"
    )


def fit_of_q(played: Sequence[Mapping[str, Any]], gamma: float) -> tuple[float, float, float, int] | None:
    """Correlation of the taken action's Q with the discounted return that followed, their means, and the steps.

    None if there are too few steps, successes or failures to tell; the correlation is 0 if Q is constant.
    """
    successes = sum(episode["success"] for episode in played)
    pairs = [
        (step["q"][step["taken"]], gamma**left * episode["success"])
        for episode in played
        for left, step in enumerate(reversed(episode["steps"]))
    ]
    if len(pairs) < _LEAST_STEPS or min(successes, len(played) - successes) < _LEAST_EPISODES:
        return None
    pairs_N2 = np.array(pairs)
    correlation = float(np.corrcoef(pairs_N2.T)[0, 1]) if np.ptp(pairs_N2[:, 0]) else 0.0
    q, returned = pairs_N2.mean(axis=0).tolist()
    return correlation, q, returned, len(pairs)


def _no_experience(evidence: Evidence) -> str | None:
    steps, config = evidence.env_steps, evidence.config
    warm_up = max(0, config.algo.warm_up - config.replay.demonstration_updates)  # those updates count towards it
    if not steps or (evidence.updates > warm_up and evidence.episodes):
        return None
    since = " after the initial ones" if config.replay.demonstration_updates else ""
    effect = "success is unknown" if evidence.updates else f"no update has been made{since}"
    if 0 < evidence.updates <= warm_up:
        effect = f"all updates{since} trained only the critic (algo.warmup_updates={config.algo.warm_up})"
    cause = evidence.missing if evidence.episodes else "no episode has ended"
    fewer = "use fewer copies, or " if config.env.copies > 1 else "or "
    return (
        f"{effect}{cause and ': '}{cause}, after {steps // config.env.copies:,} steps in each copy of the environment "
        f"(env.copies={config.env.copies}). Raise steps, {fewer}make episodes shorter (the environment's limit, "
        "often env.options.max_steps)"
    )


def _nothing_achieved(evidence: Evidence) -> str | None:
    lines = [line for line in evidence.lines if "goals_achieved" in line]
    relabels = evidence.config.replay.hindsight.relabels and not evidence.config.algo.on_policy
    if not lines or any(line["episode_success"] for line in lines):
        return None
    if not any(line["goals_achieved"] for line in lines):
        return (
            f"no goal was achieved in {evidence.episodes:,} episodes, neither an episode's own nor another: there is "
            f"no reward{', and hindsight has nothing to relabel' if relabels else ''}. Add easier goals, list them in "
            "Step.achieved, or allow longer episodes; sacglam envs --check shows what random play achieves"
        )
    if relabels:
        return None
    return (
        f"none of {evidence.episodes:,} episodes achieved its own goal, and without hindsight the other goals that "
        "were achieved teach nothing. Use algo.type=sac with replay.hindsight=graph, or add easier goals"
    )


def _type_out_of_reach(evidence: Evidence) -> str | None:
    if not evidence.late:
        return None
    shares = [name for name in sorted(set().union(*evidence.lines)) if name.startswith("goal_share/")]
    each = evidence.episodes / max(1, sum("episode_success" in line for line in evidence.lines))
    never = list[str]()
    for name in shares:
        kind = name.removeprefix("goal_share/")
        episodes = each * sum(line.get(name, 0) for line in evidence.lines)
        if episodes >= _EPISODES_OF_A_TYPE and not any(line.get(f"success/{kind}") for line in evidence.lines):
            never.append(kind)
    if not never:
        return None
    off_policy = "" if evidence.config.algo.on_policy else ", raise algo.exploration or replay.random_steps"
    return (
        f"no episode succeeded at a goal of type {', '.join(never)}, so the agent had almost no examples of it. "
        f"Add easier goals of that type{off_policy}, or give examples (replay.demonstrations)"
    )


def _entropy(evidence: Evidence) -> str | None:
    share = evidence.mean("entropy_share", 4)
    if share is None or not evidence.stuck or _COLLAPSED <= share <= _CEILING:
        return None
    algo = evidence.config.algo
    now = evidence.mean("episode_success", 4)
    seen = f"its entropy is {share:.0%} of the random policy's, and success stays at {now:.2f}"
    if share < _COLLAPSED:
        return (
            f"the policy hardly explores: {seen}. It is certain before it is right. If this was so from the start, set "
            f"{_OPEN}; otherwise raise {algo.entropy_settings}, or lower algo.actor_lr"
        )
    return (
        f"the policy is still almost random: {seen}. Updates are too few or too small, or entropy weighs too "
        f"much. Raise {algo.update_settings} or algo.actor_lr, or lower {algo.entropy_settings}"
    )


def _q_values(evidence: Evidence) -> str | None:
    fit = fit_of_q(evidence.played, evidence.config.algo.gamma)
    if fit is None or not evidence.low:
        return None
    correlation, q, returned, steps = fit
    algo, hindsight = evidence.config.algo, evidence.config.replay.hindsight
    seen = (
        f"over {steps:,} steps of {len(evidence.played)} episodes, Q averages {q:.2f} and the return {returned:.2f} "
        f"(correlation {correlation:.2f}); success is {evidence.mean('episode_success', 4):.2f}"
    )
    learn_more = f"raise algo.critic_lr, {algo.update_settings} or algo.n_step"
    unrelated, too_high = correlation < _CORRELATED, evidence.stuck and q - returned > _TOO_HIGH
    if too_high and getattr(algo, "soft_target", False):  # Q includes the entropy to come
        return f"Q is too high: {seen}. Lower {algo.entropy_settings}{', or ' + learn_more if unrelated else ''}"
    if too_high and hindsight.relabels:
        lower = "lower replay.hindsight.share, " if "share" in type(hindsight).model_fields else ""
        return (
            f"Q is too high: {seen}. Hindsight may credit the agent with what chance or hidden state decided. If "
            "sacglam envs --check reports actions whose consequences differ, put what decides them into the "
            f"observation or set prompt.history; otherwise {lower}provide demonstrations (replay.demonstrations)"
            f"{', or ' + learn_more if unrelated else ''}"
        )
    return f"Q does not predict the return: {seen}. {learn_more.capitalize()}" if unrelated else None


def _greedy(evidence: Evidence) -> str | None:
    if not evidence.after:
        return None
    greedy, sampled = evidence.after["train"], evidence.after["sampled"]
    low, high = greedy.success["overall"], sampled.success["overall"]
    if high - low <= max(_GAP, 2 * math.sqrt(0.5 / greedy.episodes)):  # two standard errors of the difference at most
        return None
    share, action = greedy.repeated
    loop = f" ({share:.0%} of the steps in failed episodes repeat an earlier one, most often {action!r})"
    entropy = evidence.mean("entropy_share", 4) or 0.0
    undecided = f", and the policy is still undecided: entropy is {entropy:.0%} of the random policy's"
    see = "" if evidence.config.prompt.history else ", set prompt.history=1 so that the policy sees its last action"
    return (
        f"greedy success is {low:.2f}, far below the {high:.2f} of sampled actions: the most probable action leads "
        f"into loops{loop if action else ''}{undecided if entropy > _UNDECIDED else ''}. Raise steps or "
        f"{evidence.config.algo.update_settings}{see}, or sample actions (sacglam evaluate --sample)"
    )


def _budget(evidence: Evidence) -> str | None:
    late = [line for line in evidence.lines if "episode_success" in line and line["env_steps"] > evidence.env_steps / 2]
    if not evidence.after or evidence.success is None or len(late) < 3:
        return None
    earlier, (middle, now) = evidence.mean("episode_success", 2), evidence.success
    if earlier is None or not earlier < middle < now:
        return None
    noise = math.sqrt((earlier * (1 - earlier) + now * (1 - now)) * 4 / evidence.episodes)  # of now - earlier
    if now - earlier < max(_MARGIN, 2 * noise):
        return None
    times = round(1 + (_GOOD - now) / (now - earlier) / 2, 1)
    if times <= _TOO_SHORT:
        return None
    return (
        f"the budget is too short: training success was {earlier:.2f} in the second quarter of the steps and {now:.2f} "
        f"in the last; at that rate it takes {times} times the budget to reach {_GOOD}. Raise steps to "
        f"{int(times * evidence.config.steps):,}, or learn more from each step ({evidence.config.algo.update_settings})"
    )


def _short_of_good(evidence: Evidence) -> str | None:
    random = evidence.random_success
    if not evidence.after or random >= _GOOD:
        return None
    greedy, sampled = (evidence.after[name].success["overall"] for name in ("train", "sampled"))
    if max(greedy, sampled) >= _GOOD:
        return None
    hardly_better = max(greedy, sampled) < random + _MARGIN
    said = f"success ended at {greedy:.2f} greedy and {sampled:.2f} sampled"
    said += (
        f", hardly better than the random policy's {random:.2f}" if hardly_better else f" (random policy: {random:.2f})"
    )
    model, env = evidence.config.model.name, evidence.config.env.name
    if hardly_better and model.startswith("builtin") and not env.startswith("playground"):
        return (
            f"{said}. The built-in model only knows the words of Playground-Text. Make a model that knows this "
            f"environment's (sacglam pretrain DIR --env {env}, then model.name=DIR)"
        )
    if evidence.success and evidence.mean("episode_success", 3) is not None:
        said += "; training success was {:.2f} in the third quarter of the steps and {:.2f} in the last".format(
            *evidence.success
        )
    share, action = evidence.after["train"].repeated
    circles = (
        f"; failed episodes go in circles ({share:.0%} of their steps repeat an earlier one, most often {action!r})"
    )
    return (
        f"{said}{circles if share >= _CIRCLES else ''}. If more is possible, see 'When a run does not learn' in "
        "docs/guides/diagnosing.md"
    )


_ROOTS = (_no_experience, _nothing_achieved)
_RULES = (_type_out_of_reach, _entropy, _q_values, _greedy, _budget)
