"""The paper's Figure 4: how many of the goals are of each type. It needs no training."""

from __future__ import annotations

import json
from pathlib import Path

from sacglam.envs import describe
from sacglam.runs.directory import explained

NAME = "goals"
ABOUT = "Proportion of each goal type in Playground-Text (Figure 4); no training"
_ENVIRONMENT = "playground"


def report_goals(out: Path) -> list[Path]:
    """Write figure, Markdown and values of the goals' proportions into `out`; the files."""
    from sacglam.tools.experiments.bars import draw_bars

    counts = next(each.goals for each in describe() if each.name == _ENVIRONMENT)
    total = sum(counts.values())
    shares = {kind: count / total for kind, count in counts.items()}
    files = [out / f"{NAME}.{ending}" for ending in ("png", "md", "json")]
    rows = [f"| {kind} | {counts[kind]:,} | {share:.1%} |" for kind, share in shares.items()]
    text = [f"# {ABOUT}", "", f"![goals]({NAME}.png)", "", "| type | goals | share |", "|---|---|---|", *rows]
    values = {"environment": _ENVIRONMENT, "goals": counts, "shares": shares}
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
        draw_bars(shares, f"{total:,} goals of {_ENVIRONMENT}", "share of the goals", files[0])
        files[1].write_text("\n".join(text) + "\n")
        files[2].write_text(json.dumps(values, indent=2) + "\n")
    return files
