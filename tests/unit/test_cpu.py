"""What this process may use of the machine's CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sacglam import cpu


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", os.cpu_count()), ("100000 100000", 1), ("50000 100000", 1), ("", os.cpu_count())]
)
def test_a_quota_is_whole_cores(text: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(os.cpu_count() or 1))
    (tmp_path / "cpu.max").write_text(text)
    assert cpu.cores() == cores


def test_cores_follow_the_affinity() -> None:
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}]); from sacglam import cpu; print(cpu.cores())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "1"


def test_threads_follow_the_cores_and_the_variable_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert 1 <= cpu.default_threads() <= min(4, cpu.cores())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert cpu.default_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")  # by level of nesting
    assert cpu.default_threads() == min(4, cpu.cores())


def test_asking_about_the_cpu_does_not_load_torch() -> None:
    code = "import sys; from sacglam import cpu; cpu.model(), cpu.cores(); sys.exit('torch' in sys.modules)"
    assert subprocess.call([sys.executable, "-c", code]) == 0


def test_cpu_seconds_include_those_of_other_processes() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        own = cpu.seconds()
        assert 0.25 < cpu.seconds([other.pid]) - own < 2
        other.kill()
    assert cpu.seconds([other.pid]) - own < 0.25  # it has ended
