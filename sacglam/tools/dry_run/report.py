"""Prints a dry run in the terminal."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from sacglam.clock import duration
from sacglam.collector import build_env
from sacglam.config import Config
from sacglam.memory import total_bytes
from sacglam.tools.dry_run.calibrate import Calibration
from sacglam.tools.dry_run.forecast import Forecast
from sacglam.tools.dry_run.sizes import rows_in_one_pass
from sacglam.tools.profile.report import phase_table


def show(console: Console, found: Forecast) -> None:
    """Print what is loaded, memory by part, time by phase, and what is missing."""
    console.print(_loaded(found))
    if found.processes:
        console.print(_memory(found))
    if found.calibration:
        total = sum(found.seconds.values())
        columns = [("time", found.seconds, duration), ("share", found.seconds, lambda s: f"{s / total:.1%}")]
        console.print(phase_table("Time for the whole run", columns))
        console.print(_method(found.config, found.calibration), soft_wrap=True, highlight=False)
    for fault in found.missing:
        console.print("[bold red]missing here:[/bold red]", end=" ")
        console.print(fault, markup=False, highlight=False, soft_wrap=True)
    if not found.calibration:
        console.print("No time is predicted: that needs the model on the run's own device.", soft_wrap=True)
    console.print("This was a dry run: nothing was written.")


def _loaded(found: Forecast) -> Table:
    config, algo, model = found.config, found.config.algo, found.config.model
    env = build_env(config)
    goals = env.goals("train")
    kinds = ", ".join(sorted({env.goal_type(goal) for goal in goals}))
    updates = f"{found.updates:,} updates of {algo.rows} rows ({rows_in_one_pass(config, 1)} in one pass)"
    in_bits = "" if model.quantize == "none" else f", layers in {model.quantize}"
    rows = {
        "environments": f"{config.env.copies} x {config.env.name}: {len(goals):,} goals ({kinds})",
        "training": f"{algo.type}, {config.steps:,} environment steps, {updates}",
        "model": f"{model.name}, {model.dtype}{in_bits}",
    }
    if sizes := found.sizes:
        rows |= {
            "parameters: base": f"{sizes.base.parameters:,}, frozen",
            "parameters: LoRA": f"{sizes.adapters.parameters:,}, rank {model.lora.rank}",
            "parameters: critic": f"{sizes.heads.parameters:,} in its heads",
        }
        if sizes.target.parameters:
            rows["parameters: target"] = f"{sizes.target.parameters:,}, averages of the above"
    table = Table(title="What is loaded", title_justify="left", box=box.SIMPLE_HEAD, show_header=False)
    for name, text in rows.items():
        table.add_row(name, escape(text))
    return table


def _memory(found: Forecast) -> Table:
    mib = Column("MiB", justify="right", no_wrap=True)
    title = "Memory by part, without the replay buffer"
    table = Table("process", "part", mib, title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for process in found.processes:
        name = process.name if process.count == 1 else f"{process.name} (each of {process.count})"
        for part, size in process.parts.items():
            table.add_row(name, part, "not known here" if size is None else _mib(size))
            name = ""
        table.add_row("", "[bold]known total", f"[bold]{_mib(process.known)}")
        table.add_section()
    if found.calibration:
        device = found.config.device
        table.add_row("", f"memory of {'this machine' if device == 'cpu' else 'one GPU'}", _mib(total_bytes(device)))
    return table


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def _method(config: Config, measured: Calibration) -> str:
    scoring, update = measured.scoring, measured.update
    return (
        f"Measured: {scoring.size} of {config.env.copies} states scored in {sum(scoring.seconds.values()):.3g} s, and "
        f"an update of {update.size} of {config.algo.rows} rows in {sum(update.seconds.values()):.3g} s; the rest is "
        "extrapolated in proportion. docs/guides/profiling.md says what is left out."
    )
