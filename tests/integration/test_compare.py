"""`sacglam compare` with real runs: run, skip, resume, refuse, report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sacglam import config as configuration
from sacglam import cpu
from sacglam.envs.bitflip import BitFlip
from sacglam.training import train
from sacglam.types import Step
from tests.conftest import TINY, call, sacglam
from tests.integration.processes import below, left_after
from tests.launcher import start

SHORT = [*TINY, "steps=128", "evaluation.every_episodes=4"]
BITFLIP = [*SHORT, "env={name: bitflip}"]
SHORTEST = [*BITFLIP, "steps=64", "evaluation.episodes=4"]


def configs(folder: Path) -> list[Path]:
    """The quickstart with and without hindsight."""
    plain = configuration.QUICKSTART.read_text()
    without = plain.replace("hindsight: {type: graph, share: 0.8}", "hindsight: none")
    assert without != plain
    for name, text in (("her", plain), ("plain", without)):
        (folder / f"{name}.yaml").write_text(text)
    return [folder / "her.yaml", folder / "plain.yaml"]


def command(name: str, *arguments: str | Path, out: Path, overrides: list[str] = SHORT, seeds: int = 1) -> list[str]:
    """The command with the overrides that make a run short; `threads` is an option of its own there."""
    settings = [word for o in overrides if not o.startswith("threads=") for word in ("--set", o)]
    return sacglam(name, *arguments, "--out", out, "--seeds", str(seeds), "--threads", "1", *settings)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison. Tests leave its runs as they are."""
    folder = tmp_path_factory.mktemp("compare")
    done = call(command("compare", *configs(folder), "--jobs", "2", out=folder / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "evaluated every 32 environment steps" in done.stdout
    return folder


@pytest.mark.slow
def test_a_comparison_leaves_runs_and_report(compared: Path) -> None:
    out = compared / "out"
    values = json.loads((out / "report.json").read_text())
    members = {member["label"]: member for member in values["groups"][0]["members"]}
    assert list(members) == ["her", "plain"]
    for label, member in members.items():
        run = out / f"{label}-seed0"
        summary = json.loads((run / "summary.json").read_text())
        assert member["after"]["overall"]["mean"] == summary["success_after"]["overall"]
        assert member["heldout_after"]["overall"]["mean"] == summary["success_heldout"]["overall"]
        assert member["curves"]["0"]["overall"]["steps"] == [0, 32, 64, 96, 128]
    assert values["setting"]["threads"] == [1]
    assert (values["setting"]["cpus"], values["setting"]["cores"]) == ([cpu.model()], [cpu.cores()])
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "2 of 2 finished" in (out / "report.md").read_text()


@pytest.mark.slow
def test_what_is_finished_is_not_done_again(compared: Path) -> None:
    out = compared / "out"
    before = {file: file.stat().st_mtime_ns for file in out.glob("*-seed0/**/*")}
    done = call(command("compare", *configs(compared), out=out))
    assert done.returncode == 0, done.stderr
    assert "2 runs, 2 of them finished before" in done.stdout
    assert before
    assert {file: file.stat().st_mtime_ns for file in out.glob("*-seed0/**/*")} == before


@pytest.mark.slow
def test_other_settings_are_refused_and_named(compared: Path) -> None:
    done = call(command("compare", *configs(compared), "--set", "algo.gamma=0.5", out=compared / "out"))
    assert done.returncode == 1
    assert "algo.gamma: 0.8 there, 0.5 now" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_report_alone_runs_nothing(compared: Path) -> None:
    three = command("compare", *configs(compared), "--report-only", out=compared / "out", seeds=2)
    done = call(three)
    assert done.returncode == 1, "two runs are not finished"
    assert "report of 2 of 4 runs" in done.stdout
    assert not (compared / "out/her-seed1").exists()
    assert call(command("compare", *configs(compared), out=compared / "out")).returncode == 0  # the report as it was


@pytest.mark.parametrize("option", [[], ["--report-only"]])
def test_no_file_is_overwritten_that_is_not_a_report(option: list[str], tmp_path: Path) -> None:
    for name, content in (("report.md", "mine"), ("report.json", "{}")):
        (tmp_path / name).write_text(content)
    done = call(command("compare", *configs(tmp_path), *option, out=tmp_path))
    assert done.returncode == 1
    assert f"the report would overwrite {tmp_path / 'report.md'}" in " ".join(done.stderr.split())
    assert (tmp_path / "report.md").read_text() == "mine"
    assert not [*tmp_path.glob("*-seed*")]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_that_fails_stops_no_other(tmp_path: Path) -> None:
    her, _ = configs(tmp_path)
    broken = tmp_path / "broken.yaml"
    broken.write_text(her.read_text().replace("name: builtin", "name: /no/such/model"))
    done = call(command("compare", broken, her, out=tmp_path / "out", overrides=BITFLIP))
    assert done.returncode == 1
    assert "broken seed 0: FAILED" in done.stdout
    assert "cannot be loaded" in done.stdout  # the end of its log
    assert "report of 1 of 2 runs" in done.stdout
    assert json.loads((tmp_path / "out/her-seed0/summary.json").read_text())["finished"]


@pytest.mark.slow
def test_ctrl_c_leaves_checkpoints_and_the_same_command_resumes(tmp_path: Path) -> None:
    her, _ = configs(tmp_path)
    out = tmp_path / "out"
    longer = [*BITFLIP, "steps=480"]
    started = command("compare", her, out=out, overrides=longer)
    run = out / "her-seed0"
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = start(started, output, subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 300
        while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").read_text().count("\n") < 3:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        family = below(process.pid)
        for each in family:
            os.kill(each.pid, signal.SIGSTOP)  # so that the run does not end meanwhile
        second = call(started)  # next to the first
        for each in family:
            os.kill(each.pid, signal.SIGCONT)
        assert second.returncode == 1
        assert "is using" in " ".join(second.stderr.split())
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 1, log.read_text()
    finally:
        process.kill()
    assert "the same command resumes" in log.read_text()
    assert left_after(family, 5) == []
    summary = json.loads((run / "summary.json").read_text())
    assert 0 < summary["env_steps"] < 480
    assert (run / "checkpoints" / f"step-{summary['env_steps']:010d}-{summary['updates']:010d}").is_dir()
    assert not (out / "report.md").exists()

    done = call(started)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((run / "summary.json").read_text())["env_steps"] == 480


FAMILY = """
title: Mine
groups:
  - title: gamma
    variants:
      "0.8": [algo.gamma=0.8]
      "0.5": [algo.gamma=0.5]
"""


@pytest.mark.slow
def test_ablations_share_the_runs_of_variants_that_they_share(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(configuration.QUICKSTART.read_text())
    (tmp_path / "mine.yaml").write_text(FAMILY)
    (tmp_path / "other.yaml").write_text(FAMILY.replace("0.5", "0.7"))
    for name, new in (("mine", 2), ("other", 1)):
        done = call(
            command("compare", tmp_path / f"{name}.yaml", "--jobs", "2", out=tmp_path / "out", overrides=SHORTEST)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"2 runs, {2 - new} of them finished before" in done.stdout
        for ending in ("md", "json", "png"):
            assert (tmp_path / "out" / f"{name}.{ending}").stat().st_size > 1000
    expected = {f"{name}-seed0" for name in ("base", "algo.gamma=0.5", "algo.gamma=0.7")}
    assert {folder.name for folder in (tmp_path / "out").glob("*-seed0")} == expected


class SlowBitflip(BitFlip):
    """A step takes 20 ms longer."""

    def step(self, action: int) -> Step:
        time.sleep(0.02)
        return super().step(action)


@pytest.mark.slow
def test_a_slower_environment_costs_its_latency_once_for_each_step(tmp_path: Path) -> None:
    overrides = [*BITFLIP, "steps=96", "evaluation.episodes=1", "evaluation.every_steps=0"]
    plain = train(configuration.load(None, overrides), tmp_path / "plain")
    name = f"{__name__}:SlowBitflip"
    slow = train(configuration.load(None, [*overrides, f"env={{name: '{name}'}}"]), tmp_path / "slow")
    assert slow["success_after"] == plain["success_after"]
    # 96 x 20 ms: the copies of the environment step one after another.
    assert 1.92 <= slow["seconds"]["environment"] - plain["seconds"]["environment"] < 3
    assert slow["train_cpu_seconds"] < slow["train_seconds"] - 1.8  # which sleep


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "no_such.yaml"], "no_such.yaml"),
        (["compare", "critic", "--set", "threads=2"], "--threads"),
        (["compare", "critic", "--report-only"], "no run under"),
    ],
)
def test_bad_input_gets_a_message(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = call(sacglam(*arguments, "--out", tmp_path / "out"))
    assert done.returncode == 1
    assert said in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
