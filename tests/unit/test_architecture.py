"""The pictures of docs/method/architecture.md, against the code that they show."""

from __future__ import annotations

import importlib.util
import sys
import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_architecture", ROOT / "docs" / "draw_architecture.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the module of their annotations
    spec.loader.exec_module(module)
    return module


def texts(name: str) -> list[str]:
    """What is written in a committed picture, in order."""
    tree = ET.parse(ROOT / "docs" / "images" / name)
    return [element.text or "" for element in tree.iter("{http://www.w3.org/2000/svg}text")]


def test_the_committed_pictures_are_current(drawing: ModuleType) -> None:
    stale = [path.name for path, svg in drawing.pictures().items() if path.read_text() != svg]
    assert not stale, "run python docs/draw_architecture.py"


def test_the_picture_shows_the_layers_of_the_contract_in_order(drawing: ModuleType) -> None:
    modules = [module.removeprefix("sacglam.") for layer in drawing.layers() for module in layer]
    assert [text for text in texts("layers.svg") if text in modules] == modules


def test_every_part_of_the_package_is_in_a_layer(drawing: ModuleType) -> None:
    package = ROOT / "sacglam"
    found = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    placed = {module.removeprefix("sacglam.") for layer in drawing.layers() for module in layer}
    assert found - {"__init__"} == placed


def test_every_name_in_the_data_flow_exists_and_is_shown(drawing: ModuleType) -> None:
    shown = " ".join(texts("data.svg"))
    for name in drawing.names():
        module, _, attribute = name.partition(":")
        assert hasattr(import_module(module), attribute), name
        assert attribute in shown
