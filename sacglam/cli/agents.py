"""Commands that use a trained agent, and the one that collects demonstrations."""

import itertools
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from sacglam import config as configuration
from sacglam.cli.display import JsonOption, RichDisplay, TrustOption, console, errors, print_plain
from sacglam.cli.train import SetOption, config_argument
from sacglam.runs.directory import RunDirectory
from sacglam.runs.exported import config_of

if TYPE_CHECKING:
    from sacglam.config import Config
    from sacglam.envs import TextEnv

RunArgument = Annotated[Path, typer.Argument(help="Folder of a run or an exported agent.", metavar="RUN")]
DeviceOption = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda or cuda:N.")]
SeedOption = Annotated[int, typer.Option(help="Seed of the episodes.", min=0)]
BestOption = Annotated[bool, typer.Option("--best", help="Use the agent that did best in evaluations during training.")]
SampleOption = Annotated[bool, typer.Option("--sample", help="Sample actions instead of taking the most probable one.")]


def evaluate(
    run: RunArgument,
    goals: Annotated[Literal["train", "heldout"], typer.Option(help="Goals to evaluate on.")] = "train",
    episodes: Annotated[int, typer.Option(help="Number of fresh episodes.", min=1)] = 500,
    seed: SeedOption = 1_000_000,
    sample: SampleOption = False,
    best: BestOption = False,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a trained agent on fresh episodes; success is broken down by goal type.

    SPL weights each success by the optimal number of steps divided by the number taken.

    \b
    Example:
      sacglam evaluate runs/my-run --goals heldout
    """
    import numpy as np

    from sacglam.agent import load_agent
    from sacglam.collector import build_env
    from sacglam.envs.base import SPLITS
    from sacglam.evaluate import evaluate as measure
    from sacglam.policy import SamplingPolicy, greedy

    agent = load_agent(run, device, trust, best)
    rng = np.random.default_rng(seed)
    with redirect_stdout(sys.stderr), RichDisplay(errors) as display:  # what the environment prints is no result
        display.stage(f"evaluating {SPLITS[goals]} goals", episodes)
        result = measure(
            lambda: build_env(agent.config),
            agent.model,
            SamplingPolicy(np.random.default_rng([seed, 1])) if sample else greedy,
            split=goals,
            episodes=episodes,
            rng=rng,
            progress=display.advance,
            prompt=agent.model.prompt,
            plan=agent.config.env.repeats,
        )
    if as_json:
        returns = {"mean_return": result.mean_return, "return_error": result.return_error}
        figures = {"success": result.success, **returns, "spl": result.spl}
        print(json.dumps({**figures, "episodes": result.episodes}))
        return
    table = Table("goals", "success")
    for name, rate in result.success.items():
        table.add_row(escape(name), f"{rate:.3f}")
    console.print(f"{result.episodes} fresh episodes, {SPLITS[goals]} goals", table, sep="\n")
    if agent.config.env.reward == "environment":
        error = "unknown" if result.return_error is None else f"{result.return_error:,.3f}"
        console.print(f"return {result.mean_return:,.3f}, standard error {error}")
    if result.spl is not None:
        console.print(f"SPL {result.spl:.3f}")


def play(
    run: RunArgument,
    goal: Annotated[str | None, typer.Option(help="Goal to play (default: random).")] = None,
    seed: SeedOption = 0,
    sample: SampleOption = False,
    best: BestOption = False,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
) -> None:
    """Play one episode and show each observation with the probability and Q value of every action; > marks the choice.

    \b
    Example:
      sacglam play runs/my-run --goal "Grow any cat"
    """
    import numpy as np

    from sacglam.agent import load_agent
    from sacglam.collector import build_env

    agent = load_agent(run, device, trust, best)
    env = build_env(agent.config)
    rng = np.random.default_rng(seed) if sample else None
    goal, why = (goal, "") if goal is not None else _chosen(run, agent.config, env, seed)
    observation = env.reset(goal, seed)
    past: list[tuple[str, str]] = []
    earned, listed = 0.0, goal in {*env.goals("train"), *env.goals("heldout")}
    console.print(f"[bold]Goal: {escape(goal)}[/bold]{escape(why) if listed else '  (not one of the environment)'}")
    for t in itertools.count(1):
        state = (observation.text, goal, observation.actions)
        probabilities = agent.probabilities(*state, past)
        values = agent.q_values(*state, past) if agent.has_q else None
        chosen = agent.act(*state, rng, past)
        title = f"step {t}, V {agent.value(*state, past):+.3f}"
        table = Table("action", "probability", *(["Q"] if values else []), title=title, title_justify="left")
        for action in observation.actions:
            cells = [f"{probabilities[action]:.3f}", *([f"{values[action]:+.3f}"] if values else [])]
            mark, style = (">", "bold green") if action == chosen else (" ", "")
            table.add_row(f"{mark} {escape(action)}", *cells, style=style)
        console.print(escape(observation.text))
        console.print(table)
        step = env.step(observation.actions.index(chosen))
        earned += step.reward
        if step.achieved:
            console.print(f"achieved: {escape(', '.join(step.achieved[:6]))}{' ...' if len(step.achieved) > 6 else ''}")
        if step.terminated or step.truncated:
            outcome = "[bold green]success" if goal in step.achieved else "[bold red]no success"
            console.print(outcome + (f", return {earned:g}" if env.own_rewards else ""))
            return
        past.append((observation.text, chosen))
        observation = step.observation


def _chosen(run: Path, config: "Config", env: "TextEnv", seed: int) -> tuple[str, str]:
    """A goal drawn as the run last drew them (a type by its share of episodes, then a goal of that type), and why."""
    import numpy as np

    from sacglam.goals import GoalSource

    rng, goals, prefix = np.random.default_rng(seed), env.goals("train"), "goal_share/"
    lines = [line for line in RunDirectory(run).metrics() if any(name.startswith(prefix) for name in line)]
    if config.goals.type == "uniform" or not lines:
        return next(GoalSource(goals, rng)).goal, ""
    shares = {name.removeprefix(prefix): share for name, share in lines[-1].items() if name.startswith(prefix)}
    kind = str(rng.choice(list(shares), p=list(shares.values())))
    goal = next(GoalSource([goal for goal in goals if env.goal_type(goal) == kind], rng)).goal
    metrics = {name: lines[-1].get(f"{name}/{kind}") for name in ("progress", "success")}
    figures = [f"{name} {value:.2f}" for name, value in metrics.items() if value is not None]
    return goal, f"  ({', '.join([f'{kind}: {shares[kind]:.0%} of recent episodes', *figures])})"


def serve(
    run: RunArgument,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 picks a free one.", min=0, max=65535)] = 8000,
    best: BestOption = False,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
) -> None:
    """Serve an agent on this machine: JSON for programs, and a page where you play alongside it.

    POST /api/act takes {"goal", "observation", "actions", "past"} and answers with the agent's action, probabilities
    and Q values. Ctrl-C stops it.

    \b
    Example:
      sacglam serve runs/my-run

    From another machine: ssh -L 8000:127.0.0.1:8000 HOST
    """
    import threading
    import time

    from sacglam.agent import load_agent
    from sacglam.runs.stopping import StopSignal
    from sacglam.tools.serving.server import Server

    agent = load_agent(run, device, trust, best)
    title = f"{run.resolve().name}, {agent.env_steps:,} steps of {agent.config.env.name}"
    with StopSignal() as stop, Server(port, title, agent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        console.print(f"{server.address} (Ctrl-C stops it)", highlight=False)
        while not stop.requested:
            time.sleep(0.1)
        server.shutdown()


def collect(
    out: Annotated[Path, typer.Argument(help="New file for the demonstrations, JSON lines.", metavar="OUT")],
    source: Annotated[
        Path | None, config_argument("Run or configuration that names the environment to play.", "[RUN|CONFIG]")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(help="Environment to play instead: a name, module:factory, gymnasium:ID or openenv:URL."),
    ] = None,
    set_: SetOption = None,
    policy: Annotated[
        Literal["planner", "random", "agent"],
        typer.Option(help="The environment's expert or planner, random actions, or the agent of RUN."),
    ] = "planner",
    noise: Annotated[float, typer.Option(help="Share of actions drawn at random.", min=0.0, max=1.0)] = 0.0,
    episodes: Annotated[int, typer.Option(help="Number of episodes.", min=1)] = 200,
    success_only: Annotated[bool, typer.Option("--success-only", help="Keep only episodes that succeed.")] = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
) -> None:
    """Collect demonstrations: episodes that a run can learn from before and during training.

    \b
    Examples:
      sacglam collect demos.jsonl --env playground_simple
      sacglam collect demos.jsonl runs/my-run --policy agent --success-only

    Then: sacglam train --set replay.demonstrations=demos.jsonl
    """
    run = source if source and source.is_dir() else None
    if (source is None) == (env is None):
        raise typer.BadParameter("expected either RUN or CONFIG, or --env NAME")
    if policy == "agent" and not run:
        raise typer.BadParameter("--policy agent needs a RUN, whose agent plays")

    from sacglam.agent import load_agent
    from sacglam.collector import build_env
    from sacglam.prompt import Prompt
    from sacglam.recording import record
    from sacglam.replay.demonstrations import write
    from sacglam.scoring.base import UniformScorer

    changes = [*(set_ or []), *([f"env.name={env}"] if env else [])]
    config = configuration.override(config_of(run, trust), changes) if run else configuration.load(source, changes)
    agent = load_agent(run, device, trust) if run and policy == "agent" else None
    played = record(
        lambda: build_env(config),
        agent.model if agent else UniformScorer() if policy == "random" else None,
        episodes,
        seed=seed,
        noise=noise,
        success_only=success_only,
        prompt=Prompt(config.prompt),
        repeats=config.env.repeats,
    )
    with RichDisplay(errors) as display:
        display.stage("collecting episodes", episodes)
        successes = write(out, played, config.env.repeats, config.env.reward, display.advance)
    print_plain(console, f"{episodes:,} episodes, {successes:,} of them successful, are in {out}")


def export(
    run: RunArgument,
    folder: Annotated[Path, typer.Argument(help="New or empty folder to write to.", metavar="DIR")],
    best: BestOption = False,
    trust: TrustOption = False,
) -> None:
    """Export an agent to a folder that other commands take in place of a run: adapter, critic, settings, model card.

    \b
    Example:
      sacglam export runs/my-run my-agent
      sacglam evaluate my-agent
    """
    from sacglam.agent import load_agent

    agent = load_agent(run, "cpu", trust or "environment", best)  # `export` does not create the environment
    agent.export(folder)
    print_plain(console, f"the agent of step {agent.env_steps:,} is in {folder}")


def push(
    run: RunArgument,
    repo: Annotated[str, typer.Argument(help="Repository on the Hugging Face Hub.", metavar="USER/NAME")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    best: BestOption = False,
    trust: TrustOption = False,
) -> None:
    """Publish an agent on the Hugging Face Hub: what `export` writes, and the run's curves.

    Log in first with `hf auth login`, or set HF_TOKEN.

    \b
    Example:
      sacglam push runs/my-run me/my-agent --private
    """
    from sacglam.agent import load_agent
    from sacglam.tools.hub import push as publish

    agent = load_agent(run, "cpu", trust or "environment", best)
    print_plain(console, f"the agent is at {publish(agent, RunDirectory(run).curves, repo, private)}")
