"""Interrupted runs resume as if nothing had happened: the same weights and metrics, bit for bit."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest
import torch

from sacglam import config as configuration
from sacglam import training
from sacglam.build import build
from sacglam.errors import RunDirectoryError, SacglamError
from sacglam.loop import Loop
from sacglam.rollout import Rollout
from sacglam.runs import checkpoint
from tests.conftest import T5, TINY, call, sacglam, tiny_train
from tests.launcher import Launched, start
from tests.often import often

pytestmark = pytest.mark.slow


def assert_same_end(run: Path, reference: Path, resumed: Collection[int] = (), lines: int = 20) -> None:
    """Weights, optimizer, targets, replay, random state and metrics of two finished runs agree to the last bit.

    With engines, the lines of metrics at the steps in `resumed` may differ in `parity_gap`: a resumed run delivers its
    adapter once more.
    """
    ends = [checkpoint.load(checkpoint.steps(folder / "checkpoints")[-1]) for folder in (run, reference)]
    assert ends[0].tensors.keys() == ends[1].tensors.keys()
    for name, tensor in ends[1].tensors.items():
        assert torch.equal(ends[0].tensors[name], tensor), name
    untimed = {"seconds": None, "cpu_seconds": None}
    timeless = [{**end.values, "clock": None, "progress": {**end.values["progress"], **untimed}} for end in ends]
    assert timeless[0] == timeless[1]
    assert counters(run) == counters(reference)
    assert metrics(run, resumed) == metrics(reference, resumed)
    assert len(metrics(run)) == lines


def metrics(run: Path, resumed: Collection[int] = ()) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"], line["cpu_seconds"]
        if line["env_steps"] in resumed:
            line.pop("parity_gap", None)
    return lines


def counters(run: Path) -> dict[str, Any]:
    """What the summary counts; phases by name, since their seconds differ, but not that of the last checkpoint, which a
    run that was stopped after it does not have."""
    summary = json.loads((run / "summary.json").read_text())
    summary["seconds"].pop("checkpoint", None)
    names = ("finished", "env_steps", "episodes", "updates", "success_before", "success_after", "success_sampled")
    return {"phases": sorted(summary["seconds"]), **{name: summary[name] for name in names}}


def wait_for_lines(run: Path, count: int, process: Launched | subprocess.Popen[bytes]) -> None:
    """Until `metrics.jsonl` has `count` lines."""
    file = run / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not file.exists() or file.read_text().count("\n") < count:
        assert process.poll() is None, "the run ended before it could be interrupted"
        assert time.monotonic() < deadline, f"waited 120 s for {count} lines of metrics"
        time.sleep(0.005)


def interrupt(command: list[str], run: Path, lines: int, number: signal.Signals, fresh: bool = False) -> int:
    """Start `command`, send it a signal once it has logged `lines` lines and a random moment more; its exit code."""
    process = subprocess.Popen(command, stdout=DEVNULL, stderr=DEVNULL) if fresh else start(command)
    try:
        wait_for_lines(run, lines, process)
        time.sleep(random.random() * 0.1)  # a truly random moment: any must do
        process.send_signal(number)
        return process.wait(timeout=60)
    finally:
        process.kill()


def test_same_seed_same_run(tiny_run: Path, tmp_path: Path) -> None:
    """In a Python of its own, whose sets have another order."""
    assert call(often(tiny_train(tmp_path / "again")), fresh=True).returncode == 0
    assert_same_end(tmp_path / "again", tiny_run)


def test_an_encoder_decoder_is_killed_and_resumes(tiny_t5_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    assert interrupt(tiny_train(run, T5), run, 9, signal.SIGKILL) == -signal.SIGKILL
    assert call(sacglam("train", resume=str(run))).returncode == 0
    assert_same_end(run, tiny_t5_run)


def test_a_run_with_history_in_its_prompts_is_killed_and_resumes(tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "killed"
    assert call(tiny_train(whole, "prompt.history=3")).returncode == 0
    assert interrupt(tiny_train(run, "prompt.history=3"), run, 9, signal.SIGKILL) == -signal.SIGKILL
    assert call(sacglam("train", resume=str(run))).returncode == 0
    assert_same_end(run, whole)


@pytest.mark.parametrize(
    "partner",
    [
        "{type: docs.examples.noisy:NoisyConfig, false_positives: 0.2, false_negatives: 0.2}",
        "{type: judge, budget: 90, threshold: 0.2, imagine: 0.5, pursue: 0.5}",
        pytest.param("{type: scored, threshold: 0.3}", marks=pytest.mark.nightly),  # scores every step in one piece
    ],
)
def test_a_run_with_a_partner_is_killed_and_resumes(partner: str, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "killed"
    assert call(tiny_train(whole, f"partner={partner}")).returncode == 0
    assert interrupt(tiny_train(run, f"partner={partner}"), run, 9, signal.SIGKILL) == -signal.SIGKILL
    assert call(sacglam("train", "--trust", resume=str(run))).returncode == 0
    assert_same_end(run, whole)
    assert any("partner_precision" in line for line in metrics(run))
    assert any("imagined_success" in line for line in metrics(run)) == ("pursue" in partner)


def test_another_seed_is_another_run(tiny_run: Path, tmp_path: Path) -> None:
    assert call(tiny_train(tmp_path / "other", "seed=1")).returncode == 0
    assert metrics(tmp_path / "other") != metrics(tiny_run)


def test_sigkill_at_random_moments(tiny_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    # Once before its first checkpoint.
    assert interrupt(often(tiny_train(run)), run, 3, signal.SIGKILL, fresh=True) == -signal.SIGKILL
    assert interrupt(sacglam("train", resume=str(run)), run, 7, signal.SIGKILL) == -signal.SIGKILL
    assert interrupt(sacglam("train", resume=str(run)), run, 13, signal.SIGKILL) == -signal.SIGKILL
    assert call(sacglam("train", resume=str(run))).returncode == 0
    assert_same_end(run, tiny_run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_cleanly_with_a_checkpoint(number: signal.Signals, tiny_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "stopped"
    assert interrupt(tiny_train(run), run, 7, number) == 0
    steps = json.loads((run / "summary.json").read_text())["env_steps"]
    assert checkpoint.steps(run / "checkpoints")[-1].name.startswith(f"step-{steps:010d}-")
    assert not json.loads((run / "summary.json").read_text())["finished"]
    assert call(sacglam("train", resume=str(run))).returncode == 0
    assert_same_end(run, tiny_run)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tiny_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "damaged"
    shutil.copytree(tiny_run, run)
    newest, before = checkpoint.steps(run / "checkpoints")[::-1][:2]
    tensors = newest / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[len(content) // 2] ^= 1
    tensors.write_bytes(content)
    done = call(sacglam("train", resume=str(run)))
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "does not match its checksum" in said
    assert f"resuming from {before}".replace(" ", "") in said.replace(" ", "")
    assert_same_end(run, tiny_run)


@pytest.mark.parametrize("content", [None, "[]", "{"])
def test_a_lost_summary_is_made_again_with_the_untrained_policy(
    content: str | None, tiny_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "lost"
    shutil.copytree(tiny_run, run)
    if content is None:
        (run / "summary.json").unlink()
    else:
        (run / "summary.json").write_text(content)
    assert call(sacglam("train", resume=str(run))).returncode == 0
    assert_same_end(run, tiny_run)


def test_a_damaged_line_of_metrics_costs_no_other(tiny_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "damaged"
    shutil.copytree(tiny_run, run)
    shutil.rmtree(checkpoint.steps(run / "checkpoints")[-1])
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join([*lines[:3], b"\xff\xfe\n", *lines[3:]]))
    done = call(sacglam("train", resume=str(run)))
    assert done.returncode == 0, done.stderr
    assert "1 damaged lines" in done.stdout
    assert_same_end(run, tiny_run)


def test_a_finished_run_that_is_stopped_in_its_last_evaluation_keeps_its_results(
    tiny_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "finished"
    shutil.copytree(tiny_run, run)
    before = (run / "summary.json").read_text()
    said, deadline = tmp_path / "said.txt", time.monotonic() + 120
    with said.open("wb") as out:
        process = start(sacglam("train", resume=str(run)), out)
    while "evaluating after" not in said.read_text():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    assert re.search(r"; (\d+) of \1 steps done", " ".join(said.read_text().split()))
    assert json.loads((run / "summary.json").read_text())["success_after"] == json.loads(before)["success_after"]


def test_a_truncated_configuration_is_not_another_experiment(tiny_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "cut"
    shutil.copytree(tiny_run, run)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text[: len(text) // 2])
    done = call(sacglam("train", resume=str(run)))
    assert done.returncode == 1
    assert "cut off" in " ".join(done.stderr.split())


def test_a_policy_that_breaks_at_a_checkpoint_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that breaks the weights is the last before a checkpoint; no loss has shown it yet."""
    run = tmp_path / "broken"
    monkeypatch.setattr(training, "CHECKPOINT_STEPS", 32)
    overrides = ["algo.updates_per_interval=1", "algo.actor_lr=1e30", "algo.warmup_updates=0", "device=cpu"]
    with pytest.raises(SacglamError, match=r"diverged|expected finite"):
        training.train(configuration.load(overrides=[*TINY, *overrides]), run)
    assert checkpoint.steps(run / "checkpoints")
    for folder in checkpoint.steps(run / "checkpoints"):
        weights = checkpoint.load(folder).tensors
        assert all(t.abs().max() < 1e3 for n, t in weights.items() if n.startswith("model.lora.default."))


def test_a_signal_during_the_first_evaluation_ends_cleanly(tiny_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "early"
    command = tiny_train(run)
    process = start(command)
    deadline = time.monotonic() + 60
    while not (run / "config.yaml").exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert call(sacglam("train", resume=str(run))).returncode == 0
    assert_same_end(run, tiny_run)


LEAN = ["model.lora.layers=1", "replay.hindsight={type: future}", "goals=progress"]
TWO = ["threads=2", "goals={type: progress, by: goal}"]


@pytest.mark.parametrize("settings", [TWO, LEAN, ["goals=magellan"]], ids=["two", "lean", "magellan"])
def test_goals_by_progress_two_threads_and_kept_hidden_states_resume_exactly(
    settings: list[str], tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert call(tiny_train(one, *settings)).returncode == 0
    assert interrupt(tiny_train(two, *settings), two, 9, signal.SIGKILL) == -signal.SIGKILL
    assert call(sacglam("train", resume=str(two))).returncode == 0
    assert_same_end(two, one)


def test_environments_in_workers_give_the_same_run(tiny_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "workers"
    assert interrupt(tiny_train(run, "env.workers=2"), run, 9, signal.SIGKILL) == -signal.SIGKILL
    assert call(sacglam("train", resume=str(run))).returncode == 0
    assert_same_end(run, tiny_run)


def test_what_follows_the_last_multiple_of_the_log_steps_is_logged(tmp_path: Path) -> None:
    interval = ["algo.update_interval=24", "steps=120"]  # each but the first and the last holds a multiple of 32
    assert call(tiny_train(tmp_path / "run", *interval)).returncode == 0
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert [line["env_steps"] for line in lines if "staleness" in line] == [48, 72, 96, 120]


def test_further_copies_do_not_begin_as_the_run_did() -> None:
    def parts(copies: int) -> tuple[Loop, Rollout]:
        config = configuration.load(overrides=[*TINY, "steps=160", "device=cpu", f"env.copies={copies}"])
        built = build(config)
        return Loop(config, built), built.collector.rollout

    def starts(rollout: Rollout) -> list[tuple[str, int]]:
        return [(each["goal"], each["seed"]) for each in rollout.state()]

    (whole, played), (_, first), (more, resumed) = parts(4), parts(4), parts(8)
    first.step()
    for _ in whole.intervals():
        pass
    more.restore(whole.checkpoint())
    assert starts(resumed)[:4] == starts(played)
    assert not set(starts(resumed)[4:]) & set(starts(first))


def test_a_checkpoint_of_another_version_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    loop = Loop(config := configuration.load(None, [*TINY, "device=cpu", "env.copies=8"]), build(config))
    written = loop.checkpoint()
    checkpoint.save(tmp_path, loop.progress.place, replace(written, values={**written.values, "format": 2}))
    with pytest.raises(RunDirectoryError, match="expected checkpoint format 3, got 2; use the sacglam that wrote it"):
        checkpoint.restore_newest(tmp_path, loop.restore, pytest.fail)


def test_a_diverged_run_stops_and_keeps_its_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "diverged"
    assert call(tiny_train(run, "algo.updates_per_interval=2", "steps=160")).returncode == 0
    config = run / "config.yaml"
    config.write_text(
        config.read_text().replace("steps: 160\n", "steps: 640\n", 1).replace("actor_lr: 0.0032", "actor_lr: 1.0e+30")
    )
    kept = checkpoint.steps(run / "checkpoints")[-1]
    done = call(sacglam("train", resume=str(run)))
    assert done.returncode == 1
    assert "expected finite losses" in done.stderr
    assert checkpoint.steps(run / "checkpoints") == [kept]
    tensors = checkpoint.load(kept).tensors
    assert all(tensor.isfinite().all() for tensor in tensors.values() if tensor.is_floating_point())


def test_a_full_disk_stops_the_run_with_a_message_and_it_resumes_once_there_is_room(
    tiny_run: Path, tmp_path: Path
) -> None:
    """A file size limit stands in for the disk, since mounting a small one takes privileges: the same failing write."""
    run = tmp_path / "full"
    limited = shlex.join(often(tiny_train(run)))
    done = call(["bash", "-c", f"ulimit -f 300; trap '' XFSZ; exec {limited}"], fresh=True)  # 300 KiB for each file
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "cannot write checkpoint" in said
    assert "--resume" in said
    assert "Traceback" not in done.stderr
    assert call(sacglam("train", resume=str(run))).returncode == 0
    assert_same_end(run, tiny_run)
