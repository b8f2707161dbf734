"""The GPU check: its result is whole whatever fails, and it needs no more than torch, transformers and peft."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.gpu_check import Part, Result

ROOT = Path(__file__).resolve().parents[3]
HIDE = """
import importlib.machinery, sys
class Hiding(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in HIDDEN:
            path = [entry for entry in sys.path if entry.endswith("benchmarks/bare")]
        return super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Hiding
"""
OURS = ("typer", "rich", "matplotlib", "ray", "deepspeed", "vllm", "aim")
"""What a machine with torch, transformers and peft may lack, next to pydantic."""


def hide(folder: Path, *packages: str) -> str:
    """A PYTHONPATH under which `packages` cannot be found; pydantic only as the stand-in."""
    (folder / "sitecustomize.py").write_text(f"HIDDEN = {packages!r}\n{HIDE}")
    return str(folder)


def check(out: Path, *arguments: str, **env: str) -> tuple[int, dict[str, object]]:
    """A run of the script on the CPU: exit code, and what the file holds."""
    done = subprocess.run(
        [str(ROOT / "launch" / "gpu_check.sh"), "--device", "cpu", "--out", str(out), *arguments],
        env=os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    found = json.loads(out.read_text())
    assert json.loads(done.stdout) == found
    return done.returncode, found


def python(code: str, timeout_s: float = 30) -> Part:
    return Part("made up", [sys.executable, "-c", code], timeout_s)


def test_a_part_gives_rows_or_the_reason_why_not() -> None:
    assert gpu_check.run(python('print(\'[{"name": "x"}]\')'), 30).rows == [{"part": "made up", "name": "x"}]
    failed = gpu_check.run(python("raise MemoryError('CUDA out of memory')"), 30)
    assert "exit code 1" in (failed.failure or "")
    assert "MemoryError: CUDA out of memory" in (failed.failure or "")
    assert "no result" in (gpu_check.run(python("print('nonsense')"), 30).failure or "")


def ended(process: int) -> bool:
    """Whether a process is gone, or is a zombie, within some seconds: a signal takes its time."""
    status = Path(f"/proc/{process}/status")
    for _ in range(100):
        if not status.exists() or "State:\tZ" in status.read_text():
            return True
        time.sleep(0.1)
    return False


def test_a_part_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = f"import subprocess; p = subprocess.Popen(['sleep', '60']); open({str(child)!r}, 'w').write(str(p.pid));"
    started = time.monotonic()
    result = gpu_check.run(python(code + "p.wait()"), 2)
    assert "ran past 2 s" in (result.failure or "")
    assert time.monotonic() - started < 30
    assert ended(int(child.read_text()))


def test_what_no_time_is_left_for_is_said_and_the_rest_kept() -> None:
    assert next(gpu_check.collect([python("pass")], time.monotonic())).failure == "no time left"
    machine = Result("machine", 1.0, [{"device": "H100", "versions": {"torch": "2.13.0"}, "commit": "abc"}])
    results = [Result("a", 2.0, [{"part": "a"}]), Result("b", 3.0, [], "exit code 1")]
    found = gpu_check.report(machine, results, [{"part": "train", "reason": "not installed: ray"}], [python("pass")])
    assert (found["device"], found["commit"]) == ("H100", "abc")
    assert found["rows"] == [{"part": "a"}]
    assert found["failed"] == [{"part": "b", "reason": "exit code 1"}]
    assert found["skipped"] == [{"part": "train", "reason": "not installed: ray"}]
    assert found["not_run"] == ["made up"]


def test_a_check_that_is_killed_leaves_what_it_has_measured(tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    code = f"""
import sys
from benchmarks import gpu_check
from benchmarks.gpu_check import Part
quick = [sys.executable, "-c", "print('[{{}}]')"]
gpu_check._MACHINE = "print('[]')"
gpu_check.parts = lambda *_: [Part("quick", quick, 30), Part("slow", ["sleep", "5"], 30), Part("last", quick, 30)]
sys.argv = ["gpu_check", "--out", {str(out)!r}]
gpu_check.main()
"""
    # Named, since Aim's side of sacglam, which other tests run in this process, stops Python from looking in `cwd`.
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
    for _ in range(300):
        if out.exists() and json.loads(out.read_text())["rows"]:
            break
        time.sleep(0.1)
    process.kill()
    process.wait()
    found = json.loads(out.read_text())
    assert found["rows"] == [{"part": "quick"}]
    assert found["not_run"] == ["slow", "last"]


def commands(device: str, gpus: int) -> dict[str, str]:
    return {part.name: " ".join(part.command) for part in gpu_check.parts(device, gpus, Path("f"))}


def test_a_gpus_memory_is_shared_where_it_is_alone() -> None:
    one, four = commands("cuda", 1), commands("cuda", 4)
    assert "--gpus 1 --engines 1 --learners 0" in one["train bfloat16"]
    assert "ranks --world 1" in one["ranks"]
    assert "--gpus 4 --out" in four["train bfloat16"]
    assert "ranks --world 2" in four["ranks"]
    assert "--gpus 1 --out" in one["train float32"]


def test_on_a_gpu_vllm_computes_in_bfloat16_only() -> None:
    found = commands("cuda", 4)
    assert "--dtype bfloat16" in found["engine"]
    assert "--gpus 4" in found["train bfloat16"]
    assert "model.dtype=float32" in found["train float32"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_must_work_comes_before_what_is_measured(device: str) -> None:
    names = list(commands(device, 2))
    assert names[:3] == ["one process float32", "one process bfloat16", "ranks"]
    assert set(gpu_check.NEEDS) <= set(names)
    measured = ["memory", "kernels", "scoring bfloat16", "update bfloat16"]
    assert [name for name in names if name in measured] == measured


def test_a_broken_machine_leaves_a_file_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    code, found = check(tmp_path / "x.json", "--only", "scoring float32", PYTHONPATH=str(tmp_path))
    assert code == 1
    assert found["device"] == "unknown"
    assert "libcudart" in json.dumps(found["failed"])
    assert {"part": "scoring float32", "reason": "cpu cannot be used here"} in found["skipped"]  # type: ignore[operator]


@pytest.mark.slow
def test_parts_run_where_pydantic_typer_and_rich_are_missing(tmp_path: Path) -> None:
    hidden = hide(tmp_path, "pydantic", "pydantic_core", *OURS)
    only = ("--only", "update bfloat16", "kernels of a large batch")
    code, found = check(tmp_path / "x.json", *only, PYTHONPATH=hidden, SACGLAM_COMMIT="abc")
    assert code == 0, found["failed"]
    assert found["pydantic"] == "the stand-in of benchmarks/bare"
    assert found["commit"] == "abc"
    counted, updated = found["rows"]  # type: ignore[misc]
    assert (counted["part"], updated["part"]) == ("kernels of a large batch", "update bfloat16")
    assert counted["operations"] > 100
    assert {"part": "ranks", "reason": "not asked for"} in found["skipped"]  # type: ignore[operator]


@pytest.mark.nightly
@pytest.mark.slow
def test_one_process_trains_and_memory_is_measured_with_torch_transformers_peft_and_pydantic_alone(
    tmp_path: Path,
) -> None:
    only = ("--only", "one process float32", "ranks", "train", "engine", "memory")
    code, found = check(tmp_path / "x.json", *only, PYTHONPATH=hide(tmp_path, *OURS))
    assert code == 0, found["failed"]
    rows = {row.get("algorithm", row["name"]): row for row in found["rows"]}  # type: ignore[attr-defined]
    assert rows.keys() == {"sac", "ppo", "memory"}
    assert 0.5 < rows["memory"]["forecast"] / rows["memory"]["peak"] < 2
    assert rows["sac"]["updates"] > 0 < rows["ppo"]["updates"]
    assert rows["sac"]["gap_to_cpu"] == 0  # this is the CPU
    reasons = {each["part"]: each["reason"] for each in found["skipped"]}  # type: ignore[attr-defined]
    assert reasons["ranks"] == "not installed: deepspeed"
    assert reasons["train float32"] == "not installed: ray, deepspeed, typer, rich, matplotlib"
    assert reasons["engine"] == "not installed: vllm"
    assert found["not_run"] == []


def test_what_is_not_installed_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACGLAM_BARE", "1")
    monkeypatch.setitem(gpu_check.NEEDS, "train", ("pydantic", "no_such_package", "json"))
    parts, skipped = gpu_check.choose([python("a"), Part("train", [], 1.0)], None)
    assert [part.name for part in parts] == ["made up"]
    assert skipped == [{"part": "train", "reason": "not installed: pydantic, no_such_package"}]


def test_rows_are_found_behind_what_an_engine_prints() -> None:
    code = "import json; print('INFO x [y]'); print(json.dumps([{'n': [1]}], indent=2))"
    assert gpu_check.run(python(code), 30).rows == [{"part": "made up", "n": [1]}]


@pytest.mark.nightly
@pytest.mark.slow
def test_the_parts_that_must_work_on_a_gpu_work_here(tmp_path: Path) -> None:
    only = ("ranks", "train float32")
    for name in (package for part in only for package in gpu_check.NEEDS.get(part, ())):
        pytest.importorskip(name)
    code, found = check(tmp_path / "x.json", "--only", *only)
    assert code == 0, found["failed"]
    rows = {row["name"]: row for row in found["rows"]}  # type: ignore[attr-defined]
    assert rows["ranks"]["world"] == 2
    assert rows["ranks"]["gap"] < 1e-3
    assert rows["train"]["finished"]
    assert rows["train"]["parity_gap"] is None  # there is no engine: test_vllm.py compares one with the learner
    assert found["versions"]["ray"]  # type: ignore[index]
