"""Damaged run folders: a clear refusal, the earlier checkpoint, or the same results; no other ones, and no code runs.

Who rewrites a checksum can change what it vouches for: then any state that a run could have written is as good as
another, and only states that none could have written must be refused (`plausible`). Logs and summary have no checksum:
a changed figure in them is shown as it is. A changed `config.yaml` is another experiment, which must be said.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, note
from hypothesis import strategies as st
from safetensors.numpy import load_file
from typing_extensions import override

from sacglam import files
from sacglam.agent import load_agent
from sacglam.collector import build_env
from sacglam.config import parse
from sacglam.errors import SacglamError
from sacglam.evaluate import evaluate
from sacglam.policy import greedy
from sacglam.runs import checkpoint
from sacglam.runs.curves import draw_curves
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display
from sacglam.runs.logs import parse_line
from sacglam.tools.experiments import plan
from sacglam.tools.experiments.markdown import markdown
from sacglam.tools.experiments.report import report
from sacglam.tools.experiments.results import read
from sacglam.tools.tracking.records import of_metrics, of_samples, of_summary
from sacglam.tools.tracking.sync import Tail
from sacglam.training import resume, train
from tests.fuzz import COUNTS
from tests.fuzz.common import TINY, affordable, fuzzed, quick_runs, refused, within

KINDS = ("flip", "value", "flip", "value", "flip", "value", "cut", "delete", "empty", "folder", "link", "line", "bytes")
KINDS += ("pickle", "code", "copy", "pipe", "huge")
CHECKED = ("tensors.safetensors", "values.json")
NUMBERS = (0, -1, 1, 2, 2**31, 2**63, 2**64, 10**400, 0.5, -0.5, 1e308, float("nan"), float("inf"))
HOSTILE: tuple[Any, ...] = (*NUMBERS, None, True, False, "", "x", "1", "\0", "\ud800", [], {}, [[]], [None], {"a": 1})
THEIRS = Path(tempfile.gettempdir()) / "sacglam-fuzz-theirs"
"""A file that is not the run's, and must stay as it is."""
CANARY = Path(tempfile.gettempdir()) / "sacglam-fuzz-canary"


@dataclass(frozen=True)
class Damage:
    """What is done to one file; `place` is where in it (0 to 1), `byte` and `value` what is written there."""

    file: str
    kind: str
    place: float
    byte: int
    value: int


def damages(rng: Random, files: list[str]) -> list[Damage]:
    """One or two; uniform over files, kinds and places, which hypothesis's own numbers are not."""
    return [
        Damage(rng.choice(files), rng.choice(KINDS), rng.random(), rng.randint(1, 255), rng.randrange(len(HOSTILE)))
        for _ in range(rng.choice((1, 1, 2)))
    ]


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {CANARY}",)


def apply(damage: Damage, root: Path) -> None:
    """Damage one file of the run in `root`; one that is gone already stays so."""
    file = root / damage.file
    if file.is_symlink() or not sound(file):
        return
    content = bytearray(file.read_bytes())
    at = int(damage.place * len(content))
    match damage.kind:
        case "flip":
            content[at : at + 1] = bytes([content[at] ^ (1 << damage.byte % 8)]) if content else b""
        case "cut":
            del content[at:]
        case "empty":
            content.clear()
        case "bytes":
            content[at : at + damage.byte % 4] = bytes([damage.byte, 0xFF, 0x80, 0])[: 1 + damage.value % 4]
        case "pickle":
            content = bytearray(pickle.dumps(Bomb()))
        case "copy":  # the file of the same name in the other checkpoint
            others = [each for each in root.glob(f"checkpoints/*/{file.name}") if each != file and sound(each)]
            content = bytearray(others[0].read_bytes()) if others else content
        case "line":
            lines = bytes(content).splitlines(keepends=True)
            odd = (b"\xff\n", b"{\n", b"[]\n", b"null\n", b"\n", b"\x00\n", b"x: 1\n", *lines[-1:])
            lines.insert(int(damage.place * len(lines)), odd[damage.byte % len(odd)])
            content = bytearray(b"".join(lines))
        case "value":
            content = swapped(content, file, damage)
        case "code":
            content = coded(content, file, damage)
    if damage.kind in ("delete", "folder", "link", "pipe"):
        file.unlink()
    match damage.kind:
        case "delete":
            pass
        case "folder":
            file.mkdir()
        case "link":
            file.symlink_to((file.name, "nowhere", "/dev/null", "..", "/dev/zero", THEIRS)[damage.byte % 6])
        case "pipe":
            os.mkfifo(file)
        case "huge":
            os.truncate(file, 1 << 40)
        case _:
            file.write_bytes(content)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places in JSON values."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def swapped(content: bytearray, file: Path, damage: Damage) -> bytearray:
    """One value of a JSON, JSON lines or YAML file replaced by a hostile one, or gone."""
    value = HOSTILE[damage.value]
    lines = bytes(content).splitlines(keepends=True)
    at = int(damage.place * 7919 % 1 * len(lines)) if file.suffix == ".jsonl" else 0
    try:
        match file.suffix:
            case ".yaml":
                found = yaml.safe_load(bytes(content))
            case ".jsonl":
                found = json.loads(lines[at])
            case _:
                found = json.loads(bytes(content))
    except Exception:  # damaged before, in any way
        return content
    every = list(places(found))
    if not every:
        return content
    *path, last = every[int(damage.place * len(every))]
    inner = found
    for part in path:
        inner = inner[part]
    if damage.byte % 5:
        inner[last] = value
    else:
        del inner[last]
    if file.suffix == ".yaml":
        return bytearray(yaml.safe_dump(found, sort_keys=False).encode(errors="surrogatepass"))
    text = json.dumps(found)
    if file.suffix == ".jsonl":
        lines[at] = text.encode() + b"\n"
        return bytearray(b"".join(lines))
    return bytearray(text.encode())


def coded(content: bytearray, file: Path, damage: Damage) -> bytearray:
    """Code in it, which must not run."""
    if file.suffix != ".yaml":
        return bytearray(f"!!python/object/apply:os.system ['touch {CANARY}']\n".encode())
    try:
        found = yaml.safe_load(bytes(content))
        env, model = found["env"], found["model"]
    except Exception:  # damaged before, in any way
        return content
    match damage.byte % 4:
        case 0:
            env.update(name="os:system", options={"command": f"touch {CANARY}"})
        case 1:
            env.update(name="fuzz_canary:fire", options={})
        case 2:
            model["name"] = str(file.parent / "remote")
            remote_code(file.parent / "remote")
        case _:
            return content + f"x: !!python/object/apply:os.system ['touch {CANARY}']\n".encode()
    return bytearray(yaml.safe_dump(found, sort_keys=False).encode())


def remote_code(folder: Path) -> None:
    """A model that comes with code."""
    folder.mkdir(exist_ok=True)
    auto = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text(json.dumps({"model_type": "evil", "architectures": ["Evil"], "auto_map": auto}))
    (folder / "evil.py").write_text(f"open({str(CANARY)!r}, 'w')\n")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))


def vouch(root: Path) -> None:
    """Make the manifests' checksums those of the files."""
    for folder in root.glob("checkpoints/step-*"):
        manifest = folder / "manifest.json"
        if all(sound(file) for file in (*(folder / name for name in CHECKED), manifest)):
            sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in CHECKED}
            manifest.unlink()  # it may be a link to a file of somebody else's
            manifest.write_text(json.dumps(sums))


# What a run leaves, without what is of the moment: seconds


@dataclass(frozen=True)
class State:
    """A checkpoint as plain values, read without the package."""

    tensors: dict[str, Any]
    values: dict[str, Any]

    def same(self, other: State) -> bool:
        return equal(self.tensors, other.tensors) and timeless(self.values) == timeless(other.values)


def equal(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "clock": None, "progress": {**values["progress"], "seconds": None, "cpu_seconds": None}}


def state_in(folder: Path) -> State:
    return State(load_file(folder / "tensors.safetensors"), json.loads((folder / "values.json").read_text()))


def plausible(found: State, reference: State) -> bool:
    """Whether a run like the reference could have written it: the same names and types, finite, indices within."""
    return (
        _shapes(found.tensors) == _shapes(reference.tensors)
        and all(np.isfinite(each).all() for each in found.tensors.values() if each.dtype.kind == "f")
        and _alike(found.values, reference.values)
    )


def _shapes(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: (each.shape, each.dtype) for name, each in tensors.items()}


def _alike(found: Any, reference: Any) -> bool:
    """The same kind of JSON value: keys, number or text, and the sign of a counter."""
    if isinstance(reference, dict):
        return (
            isinstance(found, dict)
            and found.keys() == reference.keys()
            and all(_alike(found[k], reference[k]) for k in found)
        )
    if isinstance(reference, list):
        return isinstance(found, list)
    if isinstance(reference, int | float) and not isinstance(reference, bool):
        return isinstance(found, int | float) and found == found
    return type(found) is type(reference)


# The operations


class Notes(Display):
    """Remembers what it was shown."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @override
    def note(self, text: str) -> None:
        self.notes.append(text)


def other_experiment(told: list[str], summary: dict[str, Any] | None, reference: Path) -> str:
    """The outcome of a changed `config.yaml`, which must be said while the summary knows its checksum."""
    known = RunDirectory(reference).summary()
    assert known
    if (summary or {}).get("config_sha256") != known["config_sha256"]:
        return "another experiment, and the summary that knew is damaged too"
    assert any("config.yaml" in text and "changed" in text for text in told), f"another experiment, silently: {told}"
    return "another experiment, and said so"


def resumed(run: Path, reference: Path) -> str:
    """Resume the damaged `run`, and hold what it becomes against the undamaged one."""
    settings = yaml.safe_load((reference / "config.yaml").read_text())
    known = RunDirectory(run).summary()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            config = RunDirectory.open(run).config()
            fits = affordable(config)
        except SacglamError as error:
            return refused(error)
        if fits != config:
            return "not run: its settings ask for too much"
        before = lines_of(run / "metrics.jsonl")
        states = {folder.name: readable(folder) for folder in checkpoint.steps(run / "checkpoints")}
        display = Notes()
        try:
            summary = resume(run, display)
        except SacglamError as error:
            return refused(error)
    if config != parse(settings):
        told = [str(each.message) for each in warned] + display.notes
        return other_experiment(told, known, reference)
    assert summary["finished"]
    end = state_in(checkpoint.steps(run / "checkpoints")[-1])
    if not end.same(state_in(checkpoint.steps(reference / "checkpoints")[-1])):
        [resuming] = [text for text in display.notes if text.startswith("resuming from ")]
        folder = Path(resuming.partition(";")[0]).name
        found, was = states[folder], state_in(reference / "checkpoints" / folder)
        assert found, "an unreadable checkpoint was used"
        assert not found.same(was), "another end from the same checkpoint"
        assert plausible(found, was), "a checkpoint that no run could have written was resumed"
        return "the end of the checkpoint that its rewritten checksum vouches for"
    compare_logs(run, reference, before)
    fallback = any("falling back" in note for note in display.notes)
    return "the same end, after a fallback" if fallback else "the same end"


def sound(file: Path) -> bool:
    """Whether a reader without suspicion comes to the file's end."""
    return file.is_file() and file.stat().st_size < 64 * files.MIB


def readable(folder: Path) -> State | None:
    with suppress(Exception):
        return state_in(folder) if all(sound(folder / name) for name in CHECKED) else None
    return None


def lines_of(file: Path) -> list[Any]:
    """The lines that are JSON objects with a step, as they are."""
    found = []
    content = file.read_bytes() if sound(file) else b""
    for line in content.split(b"\n"):
        with suppress(ValueError):
            each = json.loads(line)
            if isinstance(each, dict) and type(each.get("env_steps")) is int:
                found.append(each)
    return found


def compare_logs(run: Path, reference: Path, before: list[Any]) -> None:
    """Lines are those of the reference, but for those that were damaged before."""

    def shown(line: dict[str, Any]) -> str:
        return json.dumps({key: value for key, value in line.items() if key not in ("seconds", "cpu_seconds")})

    there = {shown(line) for line in [*lines_of(reference / "metrics.jsonl"), *before]}
    assert all(shown(line) in there for line in lines_of(run / "metrics.jsonl")), "other metrics"
    for name in ("adapter_model.safetensors", "critic.safetensors"):
        assert equal(load_file(run / "adapter" / name), load_file(reference / "adapter" / name)), "another adapter"


def evaluated(run: Path, reference: Path) -> str:
    """Evaluate and play the damaged run."""
    known = RunDirectory(run).summary()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            config = RunDirectory.open(run).config()
            fits = affordable(config)
            if fits != config:
                return "not run: its settings ask for too much"
            agent = load_agent(run, "cpu")
            env = build_env(agent.config)
            goal = env.goals("train")[0]
            state = env.reset(goal, 0)
            probabilities = agent.probabilities(state.text, goal, state.actions)
            value = agent.value(state.text, goal, state.actions)
            make = lambda: build_env(agent.config)  # noqa: E731
            success = evaluate(make, agent.model, greedy, episodes=2, rng=np.random.default_rng(0)).success
        except SacglamError as error:
            return refused(error)
    assert abs(sum(probabilities.values()) - 1) < 1e-6
    assert np.isfinite(value)
    told = [str(each.message) for each in warned]
    if agent.config != fits or config != RunDirectory.open(reference).config():
        return other_experiment(told, known, reference)
    names = [each.name for each in checkpoint.steps(reference / "checkpoints")]
    [folder] = [name for name in names if name.startswith(f"step-{agent.env_steps:010d}-")]
    found, was = readable(run / "checkpoints" / folder), state_in(reference / "checkpoints" / folder)
    assert found, "an unreadable checkpoint was used"
    if not equal(found.tensors, was.tensors):
        assert _shapes(found.tensors) == _shapes(was.tensors), "a checkpoint that no run could have written"
        return "the agent of the checkpoint that its rewritten checksum vouches for"
    trusted = load_agent_of(reference, folder)
    assert trusted.probabilities(state.text, goal, state.actions) == probabilities
    assert trusted.value(state.text, goal, state.actions) == value
    assert 0 <= success["overall"] <= 1
    return "the same agent" + (", after a fallback" if told else "")


_AGENTS: dict[str, Any] = {}


def load_agent_of(reference: Path, folder: str) -> Any:
    """The undamaged agent of a checkpoint."""
    if folder not in _AGENTS:
        with tempfile.TemporaryDirectory() as place:
            copy = Path(place) / "run"
            shutil.copytree(reference, copy)
            for each in checkpoint.steps(copy / "checkpoints"):
                if each.name > folder:
                    shutil.rmtree(each)
            _AGENTS[folder] = load_agent(copy, "cpu")
    return _AGENTS[folder]


def read_back(run: Path, reference: Path) -> str:
    """Draw its curves and report on it as `sacglam compare` does."""
    try:
        draw_curves(RunDirectory.open(run))
    except SacglamError as error:
        outcome = refused(error)
    else:
        outcome = "drawn"
    variant = plan.Variant(base=reference / "config.yaml")
    group = plan.Group(title="success", variants={"a": variant}, axes=("steps", "seconds"))
    experiment = plan.Experiment(title="a", groups=(group,))
    root = run.parent / "experiment"
    each = plan.Run(variant, 0, (), root)
    each.directory.root.parent.mkdir(parents=True)
    run.rename(each.directory.root)
    try:
        found = read(each)
        values = report(experiment, [each], 0.8, "sacglam compare")
        text = markdown(values, "a.png")
    except SacglamError as error:
        return f"{outcome}; {refused(error)}"
    assert values["runs"]["finished"] == (found is not None)
    return f"{outcome}; " + ("reported" if found and "final success" in text else "not finished")


def exported(run: Path, reference: Path) -> str:
    """Export the damaged run: the adapter of one of its checkpoints."""
    try:
        agent = load_agent(run, "cpu", trusted=True)
        agent.export(run.parent / "exported")
    except SacglamError as error:
        return refused(error)
    critic = {name: each for name, each in agent.model.state().items() if name.startswith("heads.")}
    found = load_file(run.parent / "exported" / "critic.safetensors")
    assert all(np.array_equal(found[name], each.numpy()) for name, each in critic.items())
    return "exported"


def loaded(run: Path, reference: Path) -> str:
    """Load the exported agent in the damaged run."""
    try:
        agent = load_agent(run / "adapter", "cpu", trusted=True)
        probabilities = agent.probabilities("nothing", "Grasp any cat", ["Grasp", "Go to blue water"])
    except SacglamError as error:
        return refused(error)
    assert sum(probabilities.values()) == pytest.approx(1.0, abs=1e-5)
    return "loaded"


def imported(run: Path, reference: Path) -> str:
    """Read the damaged run as `sacglam track` does, without Aim: the lines that are whole; others are counted."""
    try:
        logs = Tail(run / "metrics.jsonl", of_metrics), Tail(run / "samples.jsonl", of_samples)
        points = [point for log in logs for line in log for point in line]
        points += of_summary(RunDirectory.open(run, trusted=True).summary() or {})
    except SacglamError as error:
        return refused(error)
    assert all(np.isfinite(each.value) for each in points if isinstance(each.value, float))
    content = (run / "metrics.jsonl").read_bytes() if sound(run / "metrics.jsonl") else b""
    assert logs[0].damaged >= sum(parse_line(line) is None for line in content.split(b"\n")[:-1])
    return "read for Aim"


OPERATIONS: tuple[Callable[[Path, Path], str], ...] = (
    *(resumed, resumed, resumed, evaluated, evaluated, read_back, exported, loaded, imported),
)


def check(reference: Path, damage: list[Damage], vouched: bool, operation: Callable[[Path, Path], str]) -> str:
    """Damage a copy of `reference` and work on it; the outcome."""
    with tempfile.TemporaryDirectory() as place, within(120):
        run = Path(place) / "run"
        shutil.copytree(reference, run)
        for each in damage:
            apply(each, run)
        if vouched:
            vouch(run)
        try:
            with warnings.catch_warnings(record=True):
                return f"{operation.__name__}: {operation(run, reference)}"
        finally:
            assert not CANARY.exists(), "code was executed"
            assert THEIRS.read_bytes() == b"theirs", "a file that is not the run's was written"


def finished_run(place: Path) -> Path:
    """The reference, and a module on the path that must not be imported."""
    (place / "fuzz_canary.py").write_text(f"def fire(): open({str(CANARY)!r}, 'w')\nfire()\n")
    sys.path.append(str(place))
    CANARY.unlink(missing_ok=True)
    THEIRS.write_bytes(b"theirs")
    with pytest.MonkeyPatch.context() as patch:
        quick_runs(patch)
        train(parse(TINY), place / "run")
    for newest in checkpoint.steps(place / "run" / "checkpoints")[-1:]:  # so that a resume has something to do
        assert newest.name.startswith("step-0000000032-")
    return place / "run"


def files_in(run: Path) -> list[str]:
    """What is damaged; checkpoints more often than the rest."""
    files = sorted(str(file.relative_to(run)) for file in run.rglob("*") if file.is_file() and file.name != ".lock")
    return files + [name for name in files if name.startswith("checkpoints") or "config" in name] * 2


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    run = finished_run(tmp_path_factory.mktemp("fuzz"))
    yield run
    sys.path.remove(str(run.parent))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch)


@given(st.randoms(use_true_random=True))
@fuzzed(100)
@pytest.mark.nightly
def test_run_folders(reference: Path, rng: Random) -> None:
    damage, vouched, operation = damages(rng, files_in(reference)), rng.random() < 0.5, rng.choice(OPERATIONS)
    note(f"{damage}, {vouched=}, {operation.__name__}")
    outcome = check(reference, damage, vouched, operation)
    COUNTS[f"run folders{', checksums rewritten' if vouched else ''}: {outcome}"] += 1
