"""One table and one figure of the battery: the random policy, the table of Q values, the best possible, and your runs.

    sacglam compare configs/battery/*.yaml --threads 1 --out runs/battery
    python -m benchmarks.battery --runs SAC=runs/battery --out runs/battery

The first command trains; without its runs there are only the baselines, which take some minutes.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.battery.report import draw, markdown
from benchmarks.battery.search import Search
from benchmarks.battery.table import EPISODES, learn, success
from sacglam.config import Config, load
from sacglam.envs import make
from sacglam.goals import GoalSource
from sacglam.runs.directory import RunDirectory
from sacglam.scoring.base import UniformScorer

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "battery"
HALVES = {
    "choosing": (
        *("playground_simple", "frozen_lake", "castle", "textworld_studio", "babyai_go_to", "cliff_walking", "thirty"),
    ),
    "reporting": (
        *("workshop", "doorkey", "frozen_lake_8x8", "taxi", "textworld_house", "textworld_vault", "babyai_pick_up"),
        *("playground", "house"),
    ),
}
"""The environments for choosing settings, and those only for reporting."""


def baselines(config: Config, seeds: int, episodes: int) -> dict[str, Any]:
    """Success of the random policy, of the best possible one, and of the table after as many steps as a run takes."""
    env = make(config.env.name, **config.env.options)
    starts = islice(GoalSource(env.tasks(), np.random.default_rng([0, EPISODES])), episodes // 10)
    search = Search(env)
    fewest = [search.fewest_steps(start.goal, start.seed) for start in starts]
    reached = [steps for steps in fewest if steps is not None]
    return {
        "steps": config.steps,
        "random": success(config, UniformScorer(), 0, episodes),
        "table": [success(config, learn(config, seed), seed, episodes) for seed in range(seeds)],
        "optimum": len(reached) / len(fewest),
        "fewest_steps": sum(reached) / max(1, len(reached)),
    }


def runs(folder: Path, name: str) -> dict[str, list[float]]:
    """Greedy and sampled success of the finished runs of this configuration in the folder of a comparison."""
    summaries = [RunDirectory(run).summary() for run in sorted(folder.glob(f"{name}-seed*"))]
    finished = [summary for summary in summaries if summary and summary["finished"]]
    return {
        "greedy": [summary["success_after"]["overall"] for summary in finished],
        "sampled": [summary["success_sampled"]["overall"] for summary in finished],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", action="append", default=[], metavar="LABEL=FOLDER", help="repeatable")
    parser.add_argument("--out", type=Path, default=Path("runs/battery"), help="folder for battery.md, .json and .png")
    parser.add_argument(
        "--only", nargs="*", default=sum(HALVES.values(), ()), metavar="NAME", help="baselines to measure"
    )
    parser.add_argument("--seeds", type=int, default=5, help="tables learnt in each environment")
    parser.add_argument("--episodes", type=int, default=200, help="of each evaluation; a tenth is searched")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    folders = {label: Path(folder) for label, _, folder in (given.partition("=") for given in options.runs)}
    file = options.out / "battery.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    for name in options.only:
        config = load(CONFIGS / f"{name}.yaml")
        setting = config.model_dump(mode="json", include={"steps", "env", "prompt"})
        asked = {**setting, "seeds": options.seeds, "episodes": options.episodes}
        if name not in known or known[name]["asked"] != asked:
            print(f"{name}: random policy, table, search", flush=True)
            known[name] = {"asked": asked, "baselines": baselines(config, options.seeds, options.episodes)}
            file.write_text(json.dumps(known, indent=1) + "\n")
    rows = [
        {
            "name": name,
            "half": half,
            **known[name],
            "runs": {label: runs(folder, name) for label, folder in folders.items()},
        }
        for half, names in HALVES.items()
        for name in names
        if name in known
    ]
    (options.out / "battery.md").write_text(markdown(rows))
    draw(rows, options.out / "battery.png")
    print(markdown(rows))


if __name__ == "__main__":
    main()
