"""The table of phases in the terminal; apart, because `benchmarks/` records phases where rich is not installed."""

from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from sacglam.tools.profile.phases import TITLES, ordered


def phase_table(title: str, columns: Sequence[tuple[str, Mapping[str, float], Callable[[float], str]]]) -> Table:
    """A row for each phase and one for all; a column is its header, seconds by phase, and how to print them."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("phase", no_wrap=True, vertical="bottom")
    for header, _, _ in columns:
        table.add_column(header, justify="right", no_wrap=True)
    for name in ordered(name for _, seconds, _ in columns for name in seconds):
        table.add_row(escape(TITLES.get(name, name)), *(show(seconds.get(name, 0.0)) for _, seconds, show in columns))
    table.add_section()
    table.add_row("[bold]all", *(show(sum(seconds.values())) for _, seconds, show in columns))
    return table
