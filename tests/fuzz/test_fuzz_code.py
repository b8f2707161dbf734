"""Ways to have code run from a folder of others: each plants a program, and none may run.

The folder is also the working directory and on the module path, as it is for `python -m sacglam` started there.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from sacglam import cli
from sacglam.config import parse
from sacglam.models.loading import BUILTIN
from sacglam.training import train
from tests.fuzz.common import TINY

LAKE = "gymnasium:FrozenLake-v1"
OURS = "sacglam.worlds.gymnasium"


@dataclass
class Attack:
    """A copy of a run, and the file that its programs would create."""

    run: Path
    mark: Path

    @property
    def shell(self) -> str:
        return f"touch {self.mark}"

    @property
    def checkpoint(self) -> Path:
        (found,) = (self.run / "checkpoints").iterdir()
        return found

    def module(self, name: str, folder: Path | None = None) -> None:
        program = f"import os\nopen({str(self.mark)!r}, 'w')\nclass Env: pass\nclass Words: pass\n"
        (folder or self.run).joinpath(f"{name}.py").write_text(program)

    def pickled(self) -> bytes:
        return pickle.dumps(Payload(self.shell))

    def configure(self, section: str, **values: Any) -> None:
        file = self.run / "config.yaml"
        config = yaml.safe_load(file.read_text())
        config[section] |= values
        file.write_text(yaml.safe_dump(config))

    def rewritten(self, name: str, content: bytes) -> None:
        """Replace a file of the checkpoint, under a checksum that fits."""
        manifest = self.checkpoint / "manifest.json"
        (self.checkpoint / name).write_bytes(content)
        sums = json.loads(manifest.read_text()) | {name: hashlib.sha256(content).hexdigest()}
        manifest.write_text(json.dumps(sums))

    def model(self, *without: str) -> Path:
        """A model's folder that the run names."""
        folder = self.run / "model"
        shutil.copytree(BUILTIN, folder, ignore=shutil.ignore_patterns(*without))
        self.configure("model", name=str(folder))
        for name in ("configuration_evil", "modeling_evil", "tokenization_evil"):
            self.module(name, folder)
        return folder


@dataclass
class Payload:
    """Runs a command where it is unpickled."""

    command: str

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def env(name: str, **options: Any) -> Callable[[Attack], None]:
    """A run in this environment; `{shell}` in an option stands for a command."""

    def plant(attack: Attack) -> None:
        filled = json.loads(json.dumps(options).replace("{shell}", attack.shell))
        attack.configure("env", name=name, options=filled)
        attack.module("evil")

    return plant


def yaml_tag(line: str) -> Callable[[Attack], None]:
    def plant(attack: Attack) -> None:
        file = attack.run / "config.yaml"
        file.write_text(file.read_text() + line.format(shell=attack.shell) + "\n")

    return plant


def json_file(name: str, **values: Any) -> Callable[[Attack], None]:
    """A model with these values in a file of its folder."""

    def plant(attack: Attack) -> None:
        file = attack.model() / name
        found = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(found | values))

    return plant


def pickled_weights(attack: Attack) -> None:
    (attack.model("*.safetensors") / "pytorch_model.bin").write_bytes(attack.pickled())


def pickled_safetensors(attack: Attack) -> None:
    (attack.model("*.safetensors") / "model.safetensors").write_bytes(attack.pickled())


def pickled_part(attack: Attack) -> None:
    folder = attack.model("*.safetensors")
    (folder / "part.bin").write_bytes(attack.pickled())
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(BUILTIN / "model.safetensors"), "part.bin")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def pickled_adapter(attack: Attack) -> None:
    """transformers loads an adapter that lies in a model's folder, and the model that it names."""
    folder = attack.model()
    (folder / "adapter_model.bin").write_bytes(attack.pickled())
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(folder), "r": 2, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def chat_template(attack: Attack) -> None:
    program = "{{ cycler.__init__.__globals__.os.system('" + attack.shell + "') }}"
    json_file("tokenizer_config.json", chat_template=program)(attack)
    attack.configure("prompt", chat=True)


def pickled_tensors(attack: Attack) -> None:
    tensors = io.BytesIO()
    torch.save({"model": Payload(attack.shell)}, tensors)
    attack.rewritten("tensors.safetensors", tensors.getvalue())


def pickled_values(attack: Attack) -> None:
    attack.rewritten("values.json", attack.pickled())


def modules(attack: Attack) -> None:
    for name in ("json", "conftest", "sitecustomize"):
        attack.module(name)


def other_weights(attack: Attack) -> None:
    (attack.model() / "pytorch_model.bin").write_bytes(attack.pickled())


def run_adapter(attack: Attack) -> None:
    (attack.run / "adapter" / "adapter_model.bin").write_bytes(attack.pickled())


def linked_config(attack: Attack) -> None:
    env("evil:Env")(attack)
    (attack.run / "config.yaml").rename(attack.run / "other.yaml")
    (attack.run / "config.yaml").symlink_to("other.yaml")


def linked_checkpoint(attack: Attack) -> None:
    pickled_tensors(attack)
    attack.checkpoint.rename(attack.run / "elsewhere")
    attack.run.joinpath("checkpoints", "step-0000000032-0000000001").symlink_to(attack.run / "elsewhere")


def from_the_checkout(attack: Attack) -> None:
    env("sacglam.runs.checkpoint:os.system", command="{shell}")(attack)
    os.chdir(Path(cli.__file__).parents[2])


REFUSED: dict[str, Callable[[Attack], None]] = {
    "a function": env("os:system", command="{shell}"),
    "a function by its other name": env("posix:system", command="{shell}"),
    "a process": env("subprocess:run", args=["sh", "-c", "{shell}"]),
    "through a module of ours": from_the_checkout,
    "through a module that lies there": env("evil:os.system", command="{shell}"),
    "a module that lies there": env("evil:Env"),
    "a name of several lines": env("evil:Env\n"),
    "an id of ours": env("gymnasium:Bitflip-v0", kwargs={"name": "os:system", "command": "{shell}"}),
    "an id with our module": env("gymnasium:sacglam.worlds.gymnasium:Bitflip-v0", kwargs={"name": "evil:Env"}),
    "our wrapper": env(f"gymnasium:{OURS}:SacglamEnv", kwargs={"name": "os:system", "command": "{shell}"}),
    "an id with a module": env("gymnasium:evil:Env-v0"),
    "a factory for gymnasium": env("gymnasium:evil:Env"),
    "a function for gymnasium": env("gymnasium:os:system", kwargs={"command": "{shell}"}),
    "an id without describer": env("gymnasium:CartPole-v1", text="obs"),
    "a describer": env(LAKE, describer="evil:Words"),
    "a function as describer": env(LAKE, describer="os:system"),
    "another id as an argument": env(LAKE, kwargs={"id": "evil:Env-v0"}),
    "an entry point as an argument": env(LAKE, kwargs={"entry_point": "evil:Env"}),
    "a wrapper as an argument": env(LAKE, kwargs={"additional_wrappers": [["evil", "evil:Env", {}]]}),
    "a private place": env(LAKE, success="environment.__class__.__init__"),
    "an option that is a factory": env("bitflip", factory="evil:Env"),
    "a YAML call": yaml_tag("x: !!python/object/apply:os.system ['{shell}']"),
    "a YAML object": yaml_tag("x: !!python/object/new:os.system ['{shell}']"),
    "a YAML module": yaml_tag("x: !!python/module:evil"),
    "a linked configuration": linked_config,
    "pickled tensors": pickled_tensors,
    "pickled values": pickled_values,
    "a linked checkpoint": linked_checkpoint,
    "pickled weights": pickled_weights,
    "pickled safetensors": pickled_safetensors,
    "a pickled part of the weights": pickled_part,
    "a pickled adapter": pickled_adapter,
    "a chat template": chat_template,
    "a model of its own kind": json_file(
        "config.json", model_type="evil", auto_map={"AutoConfig": "configuration_evil.Env"}
    ),
}
UNREAD: dict[str, Callable[[Attack], None]] = {
    "modules that lie there": modules,
    "a model's modules": json_file(
        "config.json",
        auto_map={"AutoConfig": "configuration_evil.Env", "AutoModelForCausalLM": "modeling_evil.Env"},
        custom_generate="modeling_evil",
    ),
    "a tokenizer's module": json_file(
        "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_evil.Env", "tokenization_evil.Env"]}
    ),
    "weights in other files": other_weights,
    "a pickled adapter of the run": run_adapter,
}
ALL_COMMANDS = (["evaluate"], ["play"], ["profile"], ["train", "--resume"])


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("code") / "run"
    train(parse(TINY), run)
    return run


@pytest.fixture
def attack(victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attack:
    """A copy of a run, in which the user stands."""
    shutil.copytree(victim, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.syspath_prepend(tmp_path / "run")
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    return Attack(tmp_path / "run", tmp_path / "mark")


def ended(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["sacglam", *arguments])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    return int(exit.value.code or 0)


def assert_refused(arguments: list[str], attack: Attack, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    code = ended(arguments, monkeypatch)
    out, err = capfd.readouterr()
    assert not attack.mark.exists()
    assert "Traceback" not in out + err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (code, len(errors)) == (1, 1), out + err
    return str(errors[0])


@pytest.mark.parametrize("plant", REFUSED.values(), ids=REFUSED)
def test_a_run_that_brings_code_is_refused(
    plant: Callable[[Attack], None], attack: Attack, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(attack)
    assert_refused(["evaluate", str(attack.run), "--episodes", "2", "--device", "cpu"], attack, capfd, monkeypatch)


@pytest.mark.parametrize("plant", UNREAD.values(), ids=UNREAD)
def test_code_next_to_what_is_read_does_not_run(
    plant: Callable[[Attack], None], attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(attack)
    assert ended(["evaluate", str(attack.run), "--episodes", "2", "--device", "cpu"], monkeypatch) == 0
    assert not attack.mark.exists()


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=" ".join)
def test_every_command_that_takes_a_run_refuses_its_code(
    command: list[str], attack: Attack, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    env("evil:Env")(attack)
    assert "'evil:Env'" in assert_refused([*command, str(attack.run)], attack, capfd, monkeypatch)


def test_a_planted_program_would_show(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    env("evil:Env")(attack)
    assert ended(["evaluate", ".", "--trust"], monkeypatch) == 1  # imported, and no environment
    assert attack.mark.exists()
    attack.mark.unlink()
    pickle.loads(attack.pickled())
    assert attack.mark.exists()
