"""How long Aim's run explorer takes to open on many runs, in a real browser.

    python -m benchmarks.aim --runs 50 --points 1000 --metrics 30

Makes the runs' files, imports them as `sacglam track` does, starts `sacglam ui` and opens its pages in Chromium.
A row for each page: seconds until it shows what it is for. `--keep DIR` keeps the repository in DIR, and reuses it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import common
from sacglam.config import override, parse
from sacglam.runs.directory import RunDirectory
from sacglam.tools.tracking.aim import EXPLORATIONS
from sacglam.tools.tracking.sync import fill
from tests.browser import browser

_EVERY = 32


def write_run(root: Path, seed: int, points: int, metrics: int) -> None:
    """The files of a finished run, with made-up curves."""
    values = {
        "seed": seed,
        "env": {"name": "playground_simple"},
        "replay": {"hindsight": "ratio" if seed % 2 == 0 else "none"},
    }
    root.mkdir(parents=True)
    run = RunDirectory(root)
    run.claim(override(parse(values), []))
    successes = ["success", "success/grasp", "success/grow", "eval_success/overall"]
    names = [*successes, *(f"metric_{i}" for i in range(metrics - len(successes)))]
    rate = 400.0 if seed % 2 else 150.0
    with run.metrics_file.open("w") as file:
        for i in range(1, points + 1):
            level = 1 - math.exp(-i / rate * (1 + 0.05 * (seed % 5)))
            line = {"env_steps": i * _EVERY, "updates": i * 2, "seconds": i * 0.5}
            file.write(json.dumps(line | {name: level * (1 - 0.01 * k) for k, name in enumerate(names)}) + "\n")


def import_run(root: Path) -> float:
    """Seconds that the import takes; 0 if Aim already has the run."""
    run = RunDirectory.open(root)
    if run.summary_file.exists():  # written last, as a mark
        return 0.0
    start = time.perf_counter()
    fill("aim", run, root.parent)
    run.write_summary({"finished": False})
    return time.perf_counter() - start


def make(folder: Path, options: argparse.Namespace) -> list[float]:
    """The repository; seconds of each import."""
    roots = [folder / f"run-{seed:03d}" for seed in range(options.runs)]
    for seed, root in enumerate(roots):
        if not root.exists():
            write_run(root, seed, options.points, options.metrics)
    first = import_run(roots[0])  # alone, since it makes the repository
    spawning = multiprocessing.get_context("spawn")  # Aim's threads do not survive a fork
    with ProcessPoolExecutor(options.processes, spawning) as pool:
        seconds = [first]
        for took in pool.map(import_run, roots[1:]):
            seconds.append(took)
            common.log(f"  imported {len(seconds)} of {len(roots)}")
    return seconds


def open_pages(folder: Path, runs: int, port: int) -> list[dict[str, Any]]:
    """A row for each page of the explorer, in the order that a user would open them."""
    command = [sys.executable, "-m", "sacglam", "ui", str(folder), "--port", str(port)]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as server:
        try:
            assert server.stdout
            pages: dict[str, str] = {}
            for line in server.stdout:
                if found := re.match(r"(http\S+): (.*)", line):
                    pages[found[2]] = found[1]
                elif "Ctrl-C" in line:
                    break
            rows = [{"name": "server", "seconds": round(time.perf_counter() - start, 2)}]
            charts = "document.querySelectorAll('.LineChart').length >= {} && document.querySelector('.LineChart path')"
            lines = [run for run in range(runs) if run < 15]  # as many rows as the table draws before it is scrolled
            listed = f"(document.body.innerText.match(/run-\\d\\d\\d/g) || []).length >= {len(lines)}"
            with browser() as page:
                for name, address in pages.items():
                    page.open(address)
                    drawn = charts.format(3 if "goal type" in name else 2)  # grasp, grow, overall; train, eval
                    seconds = page.wait(listed if name == "all runs" else drawn, timeout_s=300)
                    rows.append({"name": name, "seconds": round(seconds, 2)})
                    common.log(f"  {name}: {seconds:.2f} s")
            assert pages.keys() >= EXPLORATIONS.keys()
            return rows
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--points", type=int, default=1000, help="lines of metrics.jsonl in each run")
    parser.add_argument("--metrics", type=int, default=30, help="values in each line")
    parser.add_argument("--processes", type=int, default=4, help="imports at once")
    parser.add_argument("--port", type=int, default=43899)
    parser.add_argument("--keep", type=Path, help="where the repository is made and left; none: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        imports = [seconds for seconds in make(folder, options) if seconds]
        rows = open_pages(folder, options.runs, options.port)
    shape = {"runs": options.runs, "points": options.points, "metrics": options.metrics}
    if imports:
        rows.append({"name": "import of a run", "seconds": round(sum(imports) / len(imports), 2)})
    common.emit([{**row, **shape, **common.machine("cpu", 1)} for row in rows])


if __name__ == "__main__":
    main()
