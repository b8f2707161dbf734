"""The doctor's facts: parsed from the output of tools, or tried in processes that may break."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sacglam.tools.doctor.facts import Gpu, pinned_versions
from sacglam.tools.doctor.gather import (
    _TORCH,
    Outcome,
    compiler,
    gather,
    parse_driver,
    probe,
    torch_build,
)
from sacglam.tools.doctor.report import diagnose
from tests.conftest import sacglam


def test_nvidia_smi_is_parsed() -> None:
    listed = "580.95.05, NVIDIA H100 80GB HBM3, 81559, 9.0\n580.95.05, NVIDIA GB10, [N/A], [N/A]\n"
    driver = parse_driver(listed)
    assert (driver.version, driver.fault) == ("580.95.05", None)
    assert driver.gpus == (Gpu("NVIDIA H100 80GB HBM3", 81559 / 1024, "9.0"), Gpu("NVIDIA GB10", 0.0, "[N/A]"))
    assert parse_driver("No devices were found\n").fault == "nvidia-smi lists no GPU: No devices were found"


def test_a_probe_reports_how_an_import_fails() -> None:
    assert probe("print('loaded')") == Outcome("loaded")
    assert probe("import no_such_package").error == "ModuleNotFoundError: No module named 'no_such_package'"
    assert (probe("import os; os.kill(os.getpid(), 4)").error or "").startswith("killed by SIGILL; it was built")
    assert probe("import time; time.sleep(60)", timeout_s=0.5).error == "took longer than 0.5 s"


def test_the_probe_of_torch_runs() -> None:
    build = torch_build(probe(_TORCH))
    assert build is not None
    assert build.cuda == torch.version.cuda
    assert len(build.gpus) == torch.cuda.device_count()
    assert torch_build(Outcome(error="ImportError")) is None


NVIDIA_SMI = """#!/bin/sh
for gpu in 0 1 2 3; do echo "580.95.05, NVIDIA H100 80GB HBM3, 81559, 9.0"; done
"""


def test_four_gpus_are_found_and_training_on_them_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With stand-ins for nvidia-smi and torch.cuda."""
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    h100 = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=80 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: h100)
    monkeypatch.setattr(torch, "ones", lambda *size, device: torch.zeros(*size))
    exec(_TORCH, {})
    build = torch_build(Outcome(capsys.readouterr().out))
    here = gather(quick=True)
    versions = {"torch": "2.13.0", "vllm": "0.32.0", "deepspeed": "0.19.8", "ray": "2.60.0"}
    installed = {name: v for name, v in here.installed.items() if not name.startswith(("vllm", "torch"))} | versions
    whole = replace(here, compiler="gcc", headers="Python.h", system="Linux", installed=installed, torch=build)
    assert whole.driver.version == "580.95.05"
    assert len(whole.driver.gpus) == len(whole.gpus) == 4
    found = diagnose(whole)
    names = {finding.name: finding for finding in found.findings}
    for index in range(4):
        assert names[f"GPU {index}"].came == "NVIDIA H100 80GB HBM3, 80 GiB, compute capability 9.0"
        assert names[f"GPU {index}"].level == "ok"
    assert [(v.title, v.works) for v in found.verdicts if v.way == "gpu"] == [("engines + learners on 4 GPUs", True)]


def test_the_c_compiler_is_the_one_that_triton_would_call(tmp_path: Path) -> None:
    for name in ("clang", "icx"):
        (tmp_path / name).touch(0o755)
    path = {"PATH": str(tmp_path)}
    assert compiler(path) == str(tmp_path / "clang")
    assert compiler({**path, "CC": "icx"}) == str(tmp_path / "icx")
    assert compiler({**path, "CC": "no-such-compiler"}) is None
    (tmp_path / "gcc").touch(0o755)
    assert compiler(path) == str(tmp_path / "gcc")
    assert compiler({"PATH": str(tmp_path / "empty")}) is None


def test_pinned_versions_are_those_of_the_project() -> None:
    found = pinned_versions()
    assert found["python"] == ">=3.11,<3.13"
    assert found["torch"] == "==2.13.0"
    assert {"ray", "deepspeed", "vllm", "numpy", "peft"} < found.keys()
    assert "pytest" not in found


def test_the_command_answers_without_importing_anything() -> None:
    done = subprocess.run(sacglam("doctor", "--json", "--quick"), capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [verdict["way"] for verdict in found["verdicts"]] == ["one", "cpu", "gpu"]
    assert found["verdicts"][0]["works"]


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
