"""A trained agent through the Python API, and exported to other tools."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

import sacglam
from sacglam.errors import ConfigError, EnvironmentContractError, ModelError, RunDirectoryError, UntrustedError
from sacglam.models.loading import BUILTIN, BUILTIN_T5
from tests.conftest import call
from tests.conftest import sacglam as command

OBSERVATION = "You see: baby red cat, blue water, green door\nYou are on: nothing\nInventory: empty"
ACTIONS = ["Grasp", "Go to baby red cat", "Go to blue water", "Go to green door"]
GOAL = "Grasp any cat"


def test_probabilities_q_values_and_acts(either_run: Path) -> None:
    agent = sacglam.load_agent(either_run)
    probabilities = agent.probabilities(OBSERVATION, GOAL, ACTIONS)
    assert list(probabilities) == ACTIONS
    assert sum(probabilities.values()) == pytest.approx(1.0, abs=1e-6)
    assert list(agent.q_values(OBSERVATION, GOAL, ACTIONS)) == ACTIONS
    assert agent.act(OBSERVATION, GOAL, ACTIONS) == max(probabilities, key=lambda a: probabilities[a])
    drawn = [agent.act(OBSERVATION, GOAL, ACTIONS, np.random.default_rng(i)) for i in range(60)]
    assert len(set(drawn)) > 1


def test_bad_states_are_refused(tiny_run: Path, tmp_path: Path) -> None:
    agent = sacglam.load_agent(tiny_run)
    with pytest.raises(EnvironmentContractError, match="at least one action"):
        agent.act(OBSERVATION, GOAL, [])
    with pytest.raises(EnvironmentContractError, match="more than once"):
        agent.act(OBSERVATION, GOAL, ["Grasp", "Grasp"])
    with pytest.raises(RunDirectoryError):
        sacglam.load_agent(tmp_path)


def test_an_exported_encoder_decoder_gives_the_same_policy_in_plain_peft(tiny_t5_run: Path, tmp_path: Path) -> None:
    assert call(command("export", tiny_t5_run, tmp_path / "out")).returncode == 0
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN_T5)
    model = PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(BUILTIN_T5), tmp_path / "out").eval()
    prompt = tokenizer(f"Goal: {GOAL}\n{OBSERVATION}\nAction:{tokenizer.eos_token}", return_tensors="pt")["input_ids"]
    scores = []
    for action in ACTIONS:
        labels = tokenizer(f" {action}", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            scores.append(-labels.numel() * model(input_ids=prompt, labels=labels).loss.item())
    expected = torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()
    found = sacglam.load_agent(tiny_t5_run).probabilities(OBSERVATION, GOAL, ACTIONS)
    assert list(found.values()) == pytest.approx(expected, abs=1e-5)
    critic = load_file(tmp_path / "out" / "critic.safetensors")
    assert critic["heads.critics.0.0.weight"].shape == (16, model.config.d_model)


def test_an_exported_adapter_gives_the_same_policy_in_plain_peft(tiny_run: Path, tmp_path: Path) -> None:
    assert call(command("export", tiny_run, tmp_path / "out")).returncode == 0
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BUILTIN), tmp_path / "out").eval()
    prompt = tokenizer(f"Goal: {GOAL}\n{OBSERVATION}\nAction:", add_special_tokens=False)["input_ids"]
    scores = []
    for action in ACTIONS:
        ids = tokenizer(f" {action}", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            log_probs = model(input_ids=torch.tensor([prompt + ids])).logits[0].log_softmax(-1)
        scores.append(sum(log_probs[len(prompt) - 1 + i, token].item() for i, token in enumerate(ids)))
    expected = torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()
    found = sacglam.load_agent(tiny_run).probabilities(OBSERVATION, GOAL, ACTIONS)
    assert list(found.values()) == pytest.approx(expected, abs=1e-5)
    critic = load_file(tmp_path / "out" / "critic.safetensors")
    assert critic["heads.critics.0.0.weight"].shape == (16, model.config.hidden_size)


def test_an_export_overwrites_nothing(tiny_run: Path, tmp_path: Path) -> None:
    agent, mine = sacglam.load_agent(tiny_run), tmp_path / "README.md"
    mine.write_text("mine")
    with pytest.raises(RunDirectoryError, match=r"new or empty folder, but it holds README\.md"):
        agent.export(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["README.md"]
    assert mine.read_text() == "mine"


def test_an_exported_agent_is_loaded_like_its_run(tiny_run: Path, tmp_path: Path) -> None:
    agent, out = sacglam.load_agent(tiny_run), tmp_path / "out"
    agent.export(out)
    for folder in (out, tiny_run / "adapter"):
        exported = sacglam.load_agent(folder)
        assert exported.q_values(OBSERVATION, GOAL, ACTIONS) == agent.q_values(OBSERVATION, GOAL, ACTIONS)
        assert exported.probabilities(OBSERVATION, GOAL, ACTIONS) == agent.probabilities(OBSERVATION, GOAL, ACTIONS)
        assert (exported.env_steps, exported.summary) == (agent.env_steps, agent.summary)
    exported.export(tmp_path / "again")
    assert {each.name: each.read_bytes() for each in out.iterdir()} == {
        each.name: each.read_bytes() for each in (tmp_path / "again").iterdir()
    }
    results = [call(command("evaluate", folder, "--json", episodes="8")) for folder in (tiny_run, out)]
    assert results[0].stdout == results[1].stdout != ""
    for policy in ("agent", "planner"):
        played = call(command("collect", tmp_path / f"{policy}.jsonl", out, policy=policy, episodes="2"))
        assert played.returncode == 0, played.stderr


def test_the_base_model_of_an_exported_agent_may_be_elsewhere(tiny_run: Path, tmp_path: Path) -> None:
    agent, out = sacglam.load_agent(tiny_run), tmp_path / "out"
    agent.export(out)
    shutil.copytree(BUILTIN, tmp_path / "moved")
    settings = out / "agent.yaml"
    settings.write_text(settings.read_text().replace("name: builtin\n", f"name: {tmp_path / 'moved'}\n"))
    exported = sacglam.load_agent(out)
    assert exported.config.model.name == str(tmp_path / "moved")
    assert exported.probabilities(OBSERVATION, GOAL, ACTIONS) == agent.probabilities(OBSERVATION, GOAL, ACTIONS)


def test_an_exported_agent_may_not_name_code_unless_trusted(tiny_run: Path, tmp_path: Path) -> None:
    sacglam.load_agent(tiny_run).export(tmp_path)
    settings = tmp_path / "agent.yaml"
    settings.write_text(re.sub(r"name: playground\w*", "name: somewhere:Env", settings.read_text()))
    with pytest.raises(UntrustedError, match=r"agent\.yaml: it names 'somewhere:Env'"):
        sacglam.load_agent(tmp_path)


def test_a_damaged_exported_agent_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    sacglam.load_agent(tiny_run).export(tmp_path)
    settings = tmp_path / "agent.yaml"
    whole = settings.read_text()
    settings.write_text(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"agent\.yaml does not fit this installation of sacglam: it "):
        sacglam.load_agent(tmp_path)
    settings.write_text(whole.replace("hidden: [16]", "hidden: [8]").replace("hidden:\n  - 16\n", "hidden:\n  - 8\n"))
    assert settings.read_text() != whole
    with pytest.raises(ModelError, match=r"the critic in .* does not fit its settings"):
        sacglam.load_agent(tmp_path)


def test_a_model_card_says_what_the_adapter_is(tiny_run: Path, tmp_path: Path) -> None:
    sacglam.load_agent(tiny_run).export(tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.base_model == "builtin"
    assert card.data.library_name == "peft"
    rates = json.loads((tiny_run / "summary.json").read_text())["success_after"]
    for kind, rate in rates.items():
        assert re.search(rf"^\| {kind} \|.*\| {rate:.2f} \|$", card.text, re.MULTILINE)
    assert "Goal: {goal}\n{history}{observation}\nAction:" in card.text
    assert 'load_agent("path/to/this/folder")' in card.text
    assert (tiny_run / "adapter" / "README.md").read_text() == (tmp_path / "README.md").read_text()
