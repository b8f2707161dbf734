"""A dry run in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sacglam.build import build_env
from sacglam.clock import duration
from sacglam.tools.dry_run.forecast import Forecast, Model
from sacglam.tools.dry_run.predict import seconds_of_an_update, updates_of
from sacglam.tools.dry_run.random_rollout import rows_of_an_update
from sacglam.tools.dry_run.sizes import Process
from sacglam.tools.profile.memory import total_bytes
from sacglam.tools.profile.phases import look, ordered


def show(console: Console, found: Forecast) -> None:
    """What is loaded, memory by part, time by phase, and what is missing."""
    console.print(_loaded(found))
    if found.processes:
        console.print(_memory(found))
    if found.seconds:
        console.print(_time(found))
        console.print(_how(found), soft_wrap=True, highlight=False)
    for fault in found.missing:
        console.print("[bold red]missing here:[/bold red]", end=" ")
        console.print(fault, markup=False, highlight=False, soft_wrap=True)
    if not found.seconds:
        console.print("No time is predicted: that takes the model on the training's own device.", soft_wrap=True)
    console.print("This was a dry run: nothing was written.")


def _loaded(found: Forecast) -> Table:
    config, algo = found.config, found.config.algo
    table = _table("What is loaded", "", "")
    table.add_row("environments", f"{config.env.copies} x {escape(config.env.name)}: {_goals(found)}")
    size = rows_of_an_update(config)
    rows = f"{size} rows ({min(size, algo.micro_batch_size or size)} in one pass)"
    updates = f"{updates_of(config):,} updates of {rows}"
    table.add_row("training", f"{algo.type}, {config.steps:,} environment steps, {updates}")
    in_bits = "" if config.model.quantize == "none" else f", layers in {config.model.quantize}"
    table.add_row("model", f"{escape(config.model.name)}, {config.model.dtype}{in_bits}")
    if found.model:
        _add_model(table, found.model, found)
    return table


def _add_model(table: Table, model: Model, found: Forecast) -> None:
    sizes = model.sizes
    table.add_row("architecture", model.kind)
    table.add_row("parameters: base", f"{sizes.base:,}, frozen")
    table.add_row("parameters: LoRA", f"{sizes.adapters:,}, rank {found.config.model.lora.rank}")
    table.add_row("parameters: critic", f"{sizes.heads:,} in its heads")
    if sizes.target:
        table.add_row("parameters: target", f"{sizes.target:,}, averages of the above")


def _goals(found: Forecast) -> str:
    env = build_env(found.config)
    goals = env.goals("train")
    kinds = sorted({env.goal_type(goal) for goal in goals})
    return f"{len(goals):,} goals ({escape(', '.join(kinds))})"


def _memory(found: Forecast) -> Table:
    table = _table("Memory by part", "process", "part", "MiB")
    for process in found.processes:
        for number, share in enumerate(process.shares):
            name = _title(process) if number == 0 else ""
            table.add_row(name, share.part, "not known here" if share.size is None else _mib(share.size))
        table.add_row("", "[bold]all that is known", f"[bold]{_mib(process.known)}")
        table.add_section()
    if found.calibration:
        device = found.config.device
        whose = "of this machine" if device == "cpu" else "of one GPU"
        table.add_row("", f"memory {whose}", _mib(total_bytes(device)))
    return table


def _title(process: Process) -> str:
    return process.name if process.count == 1 else f"{process.name} (each of {process.count})"


def _time(found: Forecast) -> Table:
    total = sum(found.seconds.values())
    table = _table("Time for the whole training", "phase", "time", "share")
    for name in ordered(found.seconds):
        table.add_row(look(name).title, duration(found.seconds[name]), f"{found.seconds[name] / total:.1%}")
    table.add_section()
    table.add_row("[bold]all", f"[bold]{duration(total)}", "")
    return table


def _how(found: Forecast) -> str:
    """What was measured, and what the figures leave out."""
    assert found.calibration
    config, scoring, update = found.config, found.calibration.scoring, found.calibration.update
    said = [
        f"Measured: {scoring.size} of {config.env.copies} states scored in {_seconds(scoring.seconds)}, and an update "
        f"of {update.size} of {rows_of_an_update(config)} rows in {_seconds(update.seconds)}; all else in proportion, "
        f"so that a whole update takes {duration(seconds_of_an_update(found.config, found.seconds))}. "
        f"Episodes are taken to last {found.played.episode_steps:.0f} steps, as with the random policy. Checkpoints "
        "are left out."
    ]
    if config.engines.count:
        said.append(
            "Measured in one process with the packed forward, and shared out over engines and ranks: vLLM's own pace, "
            "the ranks' exchange and the adapter's way are not in it" + (", nor the overlap" * config.runtime.lag) + "."
        )
    return "\n".join(said)


def _seconds(by_phase: Mapping[str, float]) -> str:
    return f"{sum(by_phase.values()):.3g} s"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=any(columns))
    for number, name in enumerate(columns):
        right = number > 0 and name in ("MiB", "time", "share")
        table.add_column(name, justify="right" if right else "left", no_wrap=right)
    return table
