"""Draws the two pictures of docs/method/architecture.md from the code: the layers, and what travels between the parts.

python docs/draw_architecture.py            writes docs/images/layers.svg and docs/images/data.svg
python docs/draw_architecture.py --check    fails if the committed pictures are not what it would write

The layers are those of import-linter's contract in pyproject.toml, with the first sentence of each module's docstring.
The data flow is the table below, whose names are real objects: tests/unit/test_architecture.py looks each of them up.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"

INK, FAINT, PAPER = "#1f2933", "#66727f", "#ffffff"
BLUE, GREEN, ORANGE = "#2b6cb0", "#2f855a", "#c05621"
TINTS = {BLUE: "#eef4fb", GREEN: "#eef8f1", ORANGE: "#fdf3ec"}
MONO = "DejaVu Sans Mono"
MONO_BOLD = {"family": MONO, "weight": "bold"}
WIDTH, HEIGHT = 1.78, 0.84  # of a part's box, in inches
# Text stays text, so that it can be read, searched and checked; salt and no date make the files deterministic.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "sacglam", "font.family": "DejaVu Sans"}


@dataclass(frozen=True)
class Part:
    """A box of the data flow."""

    name: str
    """`module:attribute`, below sacglam."""
    other: str
    """What takes its place with PPO or in a single process, as `module:attribute`; empty where nothing does."""
    column: int
    row: int
    does: str
    color: str = BLUE


@dataclass(frozen=True)
class Arrow:
    """Something that travels from one part to another in the same row or column."""

    source: str
    target: str
    carries: str
    """`module:attribute`, or plain words for what has no type of its own."""
    color: str = BLUE
    twin: bool = False
    """Whether another arrow goes back."""


PARTS = {
    "env": Part("envs.base:TextEnv", "", 0, 1, "a text world with a goal"),
    "rollout": Part("rollout:Rollout", "", 1, 1, "environments in lockstep"),
    "replay": Part("replay.experience:HindsightReplay", "replay.experience:OnPolicy", 2, 1, "relabels, stores, draws"),
    "learner": Part("learner.learner:Learner", "", 3, 1, "gradient steps", GREEN),
    "algorithm": Part("algos.sac:Sac", "algos.ppo:Ppo", 4, 1, "targets and losses", GREEN),
    "engines": Part("runtime.engines:EngineGroup", "runtime.learners:LearnerGroup", 1, 0, "scores the actions", ORANGE),
    "handoff": Part("runtime.handoff:Handoff", "", 3, 0, "loads, compares", ORANGE),
    "model": Part("models.actor_critic:ActorCritic", "models.actor_critic:ActorValue", 4, 0, "policy and Q", GREEN),
}
ARROWS = [
    Arrow("rollout", "env", "action", twin=True),
    Arrow("env", "rollout", "types:Step", twin=True),
    Arrow("rollout", "engines", "types:Query", twin=True),
    Arrow("engines", "rollout", "types:LogPolicy", ORANGE, twin=True),
    Arrow("rollout", "replay", "types:RolloutBatch"),
    Arrow("replay", "learner", "types:Window"),
    Arrow("learner", "algorithm", "rows", GREEN, twin=True),
    Arrow("algorithm", "learner", "loss", GREEN, twin=True),
    Arrow("algorithm", "model", "packed batch", GREEN, twin=True),
    Arrow("model", "algorithm", "models.actor_critic:PolicyAndQ", GREEN, twin=True),
    Arrow("learner", "handoff", "types:Adapter", ORANGE),
    Arrow("handoff", "engines", "types:Adapter", ORANGE),
]
STAGES = [("collect", 0.14, 3.72, BLUE), ("learn", 8.48, 3.72, GREEN), ("hand over", 6.15, 0.45, ORANGE)]


def layers() -> list[list[str]]:
    """The layers of the import contract, top to bottom, each with its modules."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in found]


def purpose(module: str) -> str:
    """The first sentence of the module's docstring."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split()).split(". ")[0].rstrip(".").replace("`", "")


def names() -> list[str]:
    """Every `module:attribute` in the picture of the data flow, in full."""
    parts = PARTS.values()
    found = (*(p.name for p in parts), *(p.other for p in parts), *(a.carries for a in ARROWS))
    return [f"sacglam.{name}" for name in found if ":" in name]


def draw_layers() -> str:
    """The layers as bands, the upper importing the lower; SVG."""
    found = layers()
    rows = sum(map(len, found))
    height = 0.27 * rows + 0.12 * len(found)
    figure, axes = _canvas(9.4, height)
    y = height - 0.04
    for layer in found:
        band = 0.27 * len(layer) + 0.04
        axes.add_patch(_box(0.55, y - band, 8.8, band, TINTS[BLUE], "#bcd3ea"))
        for index, module in enumerate(layer):
            line = y - 0.02 - 0.27 * (index + 0.5)
            axes.text(0.72, line, module.removeprefix("sacglam."), va="center", size=9.5, color=BLUE, **MONO_BOLD)
            axes.text(2.15, line, purpose(module), va="center", size=8.5, color=INK)
        y -= band + 0.08
    axes.add_patch(_arrow((0.3, height - 0.1), (0.3, 0.1), FAINT))
    axes.text(0.13, height / 2, "imports", rotation=90, ha="center", va="center", size=9, color=FAINT)
    return _svg(figure)


def draw_data() -> str:
    """The parts as boxes, what travels as arrows; SVG."""
    figure, axes = _canvas(13.3, 3.95)
    for part in PARTS.values():
        _draw_part(axes, part)
    for arrow in ARROWS:
        _draw_arrow(axes, arrow)
    for text, x, y, color in STAGES:
        axes.text(x, y, text, size=10, weight="bold", color=color, va="center")
    return _svg(figure)


def _draw_part(axes: Axes, part: Part) -> None:
    x, y = _centre(part)
    axes.add_patch(_box(x - WIDTH / 2, y - HEIGHT / 2, WIDTH, HEIGHT, TINTS[part.color], part.color, 1.4))
    lift = 0.12 if part.other else 0.02
    axes.text(x, y + lift + 0.1, _short(part.name), ha="center", va="center", size=9.5, color=part.color, **MONO_BOLD)
    axes.text(x, y + lift - 0.13, part.does, ha="center", va="center", size=8, color=INK)
    if part.other:
        axes.text(x, y - 0.25, f"or {_short(part.other)}", ha="center", va="center", size=7.5, color=FAINT, family=MONO)


def _draw_arrow(axes: Axes, arrow: Arrow) -> None:
    """A twin keeps to the right of its way, and its label to the right of it."""
    (x0, y0), (x1, y1) = _centre(PARTS[arrow.source]), _centre(PARTS[arrow.target])
    way, aside = (1 if x1 + y1 > x0 + y0 else -1), 0.11 if arrow.twin else 0.0
    if y0 == y1:
        y = y0 - way * aside
        start, end = (x0 + way * WIDTH / 2, y), (x1 - way * WIDTH / 2, y)
        label, align = ((start[0] + end[0]) / 2, y - 0.13 * way if arrow.twin else y + 0.13), "center"
    else:
        x = x0 + way * aside
        start, end = (x, y0 + way * HEIGHT / 2), (x, y1 - way * HEIGHT / 2)
        label, align = (x + 0.09 * way, (y0 + y1) / 2), "left" if way > 0 else "right"
    axes.add_patch(_arrow(start, end, arrow.color))
    font = {"family": MONO} if ":" in arrow.carries else {"style": "italic"}
    axes.text(*label, _short(arrow.carries), ha=align, va="center", size=8, color=arrow.color, **font)


def _centre(part: Part) -> tuple[float, float]:
    return 1.03 + 2.78 * part.column, 0.75 + 2.2 * part.row


def _short(name: str) -> str:
    return name.partition(":")[2] or name


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A page in inches, without a frame."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return figure, axes


def _box(x: float, y: float, width: float, height: float, fill: str, edge: str, line: float = 0.8) -> FancyBboxPatch:
    style = "round,pad=0,rounding_size=0.07"
    return FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=fill, edgecolor=edge, linewidth=line)


def _arrow(start: tuple[float, float], end: tuple[float, float], color: str) -> FancyArrowPatch:
    return FancyArrowPatch(
        start, end, arrowstyle="-|>", mutation_scale=11, color=color, linewidth=1.2, shrinkA=2, shrinkB=2
    )


def _svg(figure: Figure) -> str:
    page = StringIO()
    figure.patch.set_facecolor(PAPER)
    FigureCanvasSVG(figure).print_svg(page, metadata={"Date": None})
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def pictures() -> dict[Path, str]:
    """What each picture's file should hold."""
    with mpl.rc_context(STYLE):
        return {IMAGES / "layers.svg": draw_layers(), IMAGES / "data.svg": draw_data()}


def main() -> int:
    """Write the pictures, or with `--check` compare them."""
    check = sys.argv[1:] == ["--check"]
    for path, svg in pictures().items():
        if not check:
            path.write_text(svg)
        elif not path.exists() or path.read_text() != svg:
            print(f"{path.relative_to(ROOT)} is out of date: run python docs/draw_architecture.py")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
