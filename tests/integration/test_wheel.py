"""A release: the wheel holds everything, and is used from an empty folder in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_of_the_package_goes_into_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["sacglam"]
    package = ROOT / "sacglam"
    packed = {file for pattern in settings for file in package.glob(pattern)}
    others = {f for f in package.rglob("*") if f.is_file() and f.suffix not in (".py", ".pyc")}
    assert len(others) > 50
    assert others - packed == set()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the last commit."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "clone")], check=True)
    return tmp_path / "clone"


def release(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"PYTHON": sys.executable, "PACKAGES": sysconfig.get_path("purelib")}
    command = ["launch/release.sh", *arguments]
    return subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_a_release_is_made_and_its_wheel_tried(clone: Path) -> None:
    done = release(clone, "9.8.7", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sacglam-9.8.7-py3-none-any.whl is whole" in done.stdout
    names = zipfile.ZipFile(clone / "dist" / "sacglam-9.8.7-py3-none-any.whl").namelist()
    assert "sacglam/configs/paper/sac_her_flan_t5_base.yaml" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/"))]
    assert '__version__ = "9.8.7"' in (clone / "sacglam" / "__init__.py").read_text()
    assert "## Unreleased\n\n## 9.8.7\n" in (clone / "CHANGELOG.md").read_text()
    changed = subprocess.run(["git", "diff", "--stat"], cwd=clone, capture_output=True, text=True, check=True).stdout
    assert "2 files changed" in changed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["next", "--quick"], "expected a version such as 0.2.0"),
        (["0.0.9", "--quick"], "expected a version after 0.1.0"),
        (["0.2.0", "--fast"], "expected --quick or nothing"),
    ],
)
def test_a_release_that_is_none_is_refused(arguments: list[str], said: str, clone: Path) -> None:
    done = release(clone, *arguments)
    assert done.returncode == 1
    assert said in done.stderr


def test_a_release_needs_a_commit(clone: Path) -> None:
    (clone / "CHANGELOG.md").write_text("# Changelog\n")
    assert "not committed" in release(clone, "0.2.0", "--quick").stderr
