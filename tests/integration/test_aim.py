"""Runs in a real Aim: what is in it, resumed and imported runs, and repositories that are locked, full or broken."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sacglam.runs import checkpoint
from tests.conftest import call, sacglam, tiny_train
from tests.launcher import start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("aim") is None, reason="Aim is not installed; pip install -e '.[aim]'"),
]

LIVE = ["tracking.to=[aim]", "evaluation.every_steps=160", "evaluation.every_episodes=8"]
HINT = "sacglam track"


def lines(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def imported(run: Path) -> str:
    """Import a run into the repository next to it; its hash."""
    done = call(sacglam("track", run))
    assert done.returncode == 0, done.stderr
    return str(json.loads((run / "aim.json").read_text())["hash"])


def in_aim(folder: Path, run_hash: str) -> Any:
    """A run as Aim gives it to read, once it is in the index that the explorer keeps."""
    from aim.sdk.index_manager import RepoIndexManager
    from aim.sdk.repo import Repo

    repo = Repo(str(folder))
    RepoIndexManager(repo).index(run_hash)
    found = repo.get_run(run_hash)
    assert found is not None
    return found


def curve(run: Any, name: str, **context: str) -> dict[int, float]:
    """A metric's values by step."""
    from aim.storage.context import Context

    sequence = run.get_metric(name, Context(context))
    assert sequence is not None, f"no {name} in {context}"
    steps, (values, *_) = sequence.data.numpy()
    return dict(zip(map(int, steps), map(float, values), strict=True))


def expected(run: Path, key: str) -> dict[int, float]:
    """The same from the run's file."""
    return {line["env_steps"]: line[key] for line in lines(run) if key in line}


def hashes(folder: Path) -> set[str]:
    """All runs of a repository."""
    return {path.name for path in (folder / ".aim" / "meta" / "chunks").iterdir()}


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """A finished run that Aim does not know, in a folder of its own."""
    return Path(shutil.copytree(tiny_run, tmp_path / "runs" / "one"))


@pytest.fixture(scope="module")
def known(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that Aim knows. Tests leave it as it is."""
    run = Path(shutil.copytree(tiny_run, tmp_path_factory.mktemp("known") / "runs" / "one"))
    imported(run)
    return run


@pytest.fixture
def tracked(known: Path, tmp_path: Path) -> Path:
    """The same with its repository, in a folder of its own."""
    return Path(shutil.copytree(known.parent, tmp_path / "runs")) / known.name


def test_runs_that_begin_together_share_a_new_repository(run: Path) -> None:
    other = Path(shutil.copytree(run, run.parent / "two"))
    for importing in [start(sacglam("track", each)) for each in (run, other)]:
        assert importing.wait(120) == 0
    assert hashes(run.parent) == {json.loads((each / "aim.json").read_text())["hash"] for each in (run, other)}


def test_an_import_fills_aim_wholly(tracked: Path) -> None:
    run, run_hash = tracked, json.loads((tracked / "aim.json").read_text())["hash"]
    found = in_aim(run.parent, run_hash)
    assert (found.name, found.experiment, found.tags) == ("one", "playground_simple", ["SAC+HER"])
    assert found["hparams", "algo", "gamma"] == 0.8
    assert found["algorithm"] == "SAC+HER"
    assert found["summary", "versions", "torch"].startswith("2.")
    assert found.end_time is not None
    for name in ("entropy", "alpha", "critic_loss", "seconds"):
        assert curve(found, name) == pytest.approx(expected(run, name), abs=1e-5)
    train = {"subset": "train", "goal_type": "overall"}
    assert curve(found, "success", **train) == expected(run, "success")
    assert curve(found, "seconds", **train).keys() == expected(run, "success").keys()
    assert curve(found, "success", subset="train", goal_type="grasp") == expected(run, "success/grasp")
    after = json.loads((run / "summary.json").read_text())["success_after"]
    assert curve(found, "success", subset="eval", goal_type="grow")[640] == after["grow"]


def test_an_import_brings_episodes_and_distributions(tracked: Path) -> None:
    from aim.storage.context import Context

    run_hash = json.loads((tracked / "aim.json").read_text())["hash"]
    found, train = in_aim(tracked.parent, run_hash), Context({"subset": "train"})
    samples = lines(tracked, "samples.jsonl")
    assert [line["env_steps"] for line in samples] == [320, 640]
    texts = found.get_text_sequence("episodes", train)
    shown = [text.data for text in texts.values.sparse_list()[1][0]]
    assert len(shown) == len(samples[0]["episodes"]) == 4
    assert shown[0].startswith(f"Goal: {samples[0]['episodes'][0]['goal']}")
    for name, key in (("action_probabilities", "probabilities"), ("q_values", "q")):
        first = found.get_distribution_sequence(name, train).values.sparse_list()[1][0]
        values = [v for episode in samples[0]["episodes"] for step in episode["steps"] for v in step[key]]
        weights, _ = first.to_np_histogram()
        assert weights.sum() == len(values)
        assert first.range == pytest.approx((min(values), max(values)))


def test_an_import_leaves_out_what_is_damaged_and_says_so(run: Path) -> None:
    expected_curve = expected(run, "success")
    for name in ("metrics.jsonl", "samples.jsonl"):
        with (run / name).open("ab") as log:
            log.write(b'{\n[]\n{"env_steps": "x"}\n{"env_steps": 9, "success": null}\n')
    done = call(sacglam("track", run))
    assert done.returncode == 0, done.stderr
    assert "8 damaged lines of metrics.jsonl and samples.jsonl were left out" in done.stderr
    run_hash = json.loads((run / "aim.json").read_text())["hash"]
    assert curve(in_aim(run.parent, run_hash), "success", subset="train", goal_type="overall") == expected_curve


def test_each_repository_has_the_run_once(tracked: Path, tmp_path: Path) -> None:
    own = imported(tracked)
    other = tmp_path / "other"
    assert call(sacglam("track", tracked, repo=str(other))).returncode == 0
    there = json.loads((tracked / "aim.json").read_text())["hash"]
    assert imported(tracked) == own
    assert call(sacglam("track", tracked, repo=str(other))).returncode == 0
    assert hashes(tracked.parent) == {own}
    assert hashes(other) == {there} != {own}


def test_a_second_import_updates_the_same_run(tracked: Path) -> None:
    before = json.loads((tracked / "aim.json").read_text())["hash"]
    kept = (tracked / "metrics.jsonl").read_text().splitlines(keepends=True)
    changed = {**json.loads(kept[-1]), "env_steps": 672, "entropy": 0.125}
    (tracked / "metrics.jsonl").write_text("".join([*kept, json.dumps(changed) + "\n"]))
    assert imported(tracked) == before
    assert hashes(tracked.parent) == {before}
    assert curve(in_aim(tracked.parent, before), "entropy") == pytest.approx(expected(tracked, "entropy"), abs=1e-5)


@pytest.mark.parametrize("fault", ["a file in its place", "version", "database", "run"])
def test_a_broken_repository_gets_a_message(fault: str, request: pytest.FixtureRequest) -> None:
    run: Path = request.getfixturevalue("run" if fault == "a file in its place" else "tracked")
    repo = run.parent / ".aim"
    if fault == "a file in its place":
        repo.write_text("not a folder")
    else:
        run_hash = json.loads((run / "aim.json").read_text())["hash"]
        broken = {"version": repo / "VERSION", "database": repo / "run_metadata.sqlite"}
        for file in [broken[fault]] if fault in broken else [*(repo / "meta" / "chunks" / run_hash).iterdir()]:
            file.write_bytes(b"garbage" * 100)
    done = call(sacglam("track", run))
    assert done.returncode == 1
    assert f"Aim cannot use {repo}" in done.stderr
    assert "Traceback" not in done.stderr.partition("error:")[2]
    # Once it is out of the way, all is as before.
    shutil.rmtree(repo) if repo.is_dir() else repo.unlink()
    assert curve(in_aim(run.parent, imported(run)), "entropy").keys() == expected(run, "entropy").keys()


def test_a_run_has_one_writer(tracked: Path) -> None:
    with (tracked / ".aim.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = call(sacglam("track", tracked))
    assert done.returncode == 1
    assert "another process is writing the run" in done.stderr


def test_the_lock_of_a_writer_that_died_does_not_matter(tracked: Path) -> None:
    run_hash = json.loads((tracked / "aim.json").read_text())["hash"]
    dead = subprocess.Popen(["true"])
    dead.wait()
    locks = tracked.parent / ".aim" / "locks"
    (locks / f"{run_hash}.softlock").write_text(f"{uuid.getnode()}-{dead.pid}-{time.time()}")
    (locks / "structured_db_lock").touch()
    assert imported(tracked) == run_hash


def test_an_import_that_was_killed_is_done_again_into_the_same_run(run: Path) -> None:
    text = (run / "metrics.jsonl").read_text().splitlines()
    many = [json.dumps({**json.loads(text[-1]), "env_steps": 32 * i}) for i in range(1, 501)]
    (run / "metrics.jsonl").write_text("\n".join(many) + "\n")
    process = start(sacglam("track", run))
    deadline = time.monotonic() + 120
    while not (run / "aim.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    left = json.loads((run / "aim.json").read_text())["hash"]
    assert imported(run) == left
    assert len(curve(in_aim(run.parent, left), "entropy")) == 500


def test_a_run_is_in_aim_while_it_trains_and_an_import_adds_nothing(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "live"
    done = call(tiny_train(run, *LIVE))
    assert done.returncode == 0, done.stderr
    assert HINT not in done.stdout
    summary = json.loads((run / "summary.json").read_text())
    run_hash = json.loads((run / "aim.json").read_text())["hash"]
    found = in_aim(run.parent, run_hash)
    overall = {"goal_type": "overall"}
    held_out = curve(found, "success", subset="heldout", **overall)
    assert held_out == {640: summary["success_heldout"]["overall"]}
    evaluated = curve(found, "success", subset="eval", **overall)
    assert sorted(evaluated) == [0, 160, 320, 480, 640]
    before = {name: curve(found, name) for name in ("entropy", "q", "updates")}
    assert before["q"] == pytest.approx(expected(run, "q"), abs=1e-5)
    assert imported(run) == run_hash
    again = in_aim(run.parent, run_hash)
    assert {name: curve(again, name) for name in before} == before


def test_a_killed_run_resumes_in_the_same_aim_run(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "killed"
    process = start(tiny_train(run, *LIVE, "steps=1280"))
    deadline = time.monotonic() + 120
    while not checkpoint.steps(run / "checkpoints") or not (run / "aim.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    first = json.loads((run / "aim.json").read_text())["hash"]
    done = call(sacglam("train", resume=str(run)))
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "aim.json").read_text())["hash"] == first
    assert hashes(run.parent) == {first}
    for name in ("entropy", "seconds"):
        assert curve(in_aim(run.parent, first), name) == pytest.approx(expected(run, name), abs=1e-5)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system takes privileges that are not there")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_never_stops_a_run(small_disk: Path, tiny_run: Path, tmp_path: Path) -> None:
    known = Path(
        shutil.copytree(tiny_run, small_disk / "known", ignore=shutil.ignore_patterns("checkpoints", "adapter"))
    )
    imported(known)  # so that there is a repository with room for nothing more
    fill_up(small_disk)
    again = call(sacglam("track", known))
    assert again.returncode == 1
    assert "Aim cannot use" in again.stderr
    run = tmp_path / "runs" / "full"
    run.parent.mkdir()
    (run.parent / ".aim").symlink_to(small_disk / ".aim")
    done = call(tiny_train(run, *LIVE))
    assert_trained_without_aim(done, run)
    (small_disk / "ballast").unlink()
    run_hash = imported(run)
    assert curve(in_aim(small_disk, run_hash), "q") == pytest.approx(expected(run, "q"), abs=1e-5)


def fill_up(disk: Path) -> None:
    """Leave no room on a small disk."""
    with (disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))


@pytest.mark.parametrize("fault", ["broken", "locked"])
def test_a_broken_or_locked_repository_never_stops_a_run(fault: str, tmp_path: Path) -> None:
    run = tmp_path / "runs" / fault
    repo = run.parent / ".aim"
    if fault == "broken":
        repo.mkdir(parents=True)
        (repo / "VERSION").write_text("garbage")
        done = call(tiny_train(run, *LIVE))
    else:
        assert call(tiny_train(run, *LIVE, "steps=160")).returncode == 0
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("steps: 160\n", "steps: 640\n", 1))
        with (run / ".aim.lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            done = call(sacglam("train", resume=str(run)))
    assert_trained_without_aim(done, run)


def assert_trained_without_aim(done: subprocess.CompletedProcess[str], run: Path) -> None:
    """It finished with all its lines, and said once what to do about Aim."""
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(HINT) == 1, done.stdout
    assert json.loads((run / "summary.json").read_text())["finished"]
    assert len(expected(run, "entropy")) >= 18
    assert expected(run, "q")[640] is not None
