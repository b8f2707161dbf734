"""The extra `openenv-server` in an environment of its own, since it cannot be installed next to vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.unit.test_docs import ROOT

TESTS = ("tests/unit/envs/test_openenv.py", "tests/integration/test_openenv_runs.py")


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("openenv") is not None, reason="openenv is installed, so its tests run by themselves")
def test_what_needs_openenv_passes_where_it_is_installed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = str(tmp_path / "bin" / "python")
    said = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], stdout=-1, check=True
    )
    own = Path(said.stdout.decode().strip())
    (own / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # searched after its own packages
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *extras["openenv"], *extras["openenv-server"]], check=False
    )
    if installed.returncode:
        pytest.skip("openenv cannot be installed here: pip has said why")
    command = [python, "-m", "pytest", "-n", "0", "-q", *TESTS]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=-1, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "skipped" not in done.stdout
