"""The configuration: what it refuses and how it says so, overrides, and that it survives the way to disk and back."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sacglam.algos.awac_settings import AwacConfig
from sacglam.algos.ppo import PpoConfig
from sacglam.algos.sac import SacConfig
from sacglam.algos.sac_settings import OffPolicyConfig
from sacglam.config import QUICKSTART, Config, load, located, names, override, parse, parse_complete
from sacglam.config.section import Named, Section
from sacglam.config.sections import EnvConfig, PromptConfig
from sacglam.envs import make
from sacglam.errors import ConfigError
from sacglam.goals import ProgressConfig
from sacglam.partners import JudgeConfig, ScoredConfig
from sacglam.replay.sampling import Future, Graph, NoHindsight, Ratio
from tests.fuzz.common import within


def _write(folder: Path, text: str) -> Path:
    path = folder / "experiment.yaml"
    path.write_text(text)
    return path


def _fault(values: dict[Any, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(values)
    return str(caught.value)


def test_the_defaults_are_the_paper_s() -> None:
    # Tables 2 and 3 and Appendix C of the paper.
    config = parse({})
    assert isinstance(config.algo, SacConfig)
    assert (config.algo.gamma, config.algo.n_step, config.algo.batch_size) == (0.99, 3, 256)
    assert (config.algo.actor_lr, config.algo.critic_lr) == (1e-4, 1e-4)
    assert (config.algo.update_interval, config.algo.updates_per_interval, config.env.copies) == (32, 2, 32)
    assert (config.algo.alpha.init, config.algo.alpha.target_entropy, config.algo.alpha.lr) == (0.05, 0.01, 2e-3)
    assert (config.replay.capacity, config.replay.hindsight) == (100_000, Ratio(share=0.5))
    assert config.critic.hidden == [1024, 1024]


def test_the_defaults_of_ppo_are_the_paper_s() -> None:
    # Table 1.
    ppo = PpoConfig()
    assert (ppo.update_interval, ppo.epochs, ppo.batch_size) == (2048, 16, 256)
    assert (ppo.entropy_coef, ppo.gamma, ppo.gae_lambda) == (0.01, 0.99, 0.99)
    assert (ppo.actor_lr, ppo.critic_lr, ppo.max_grad_norm) == (1e-4, 1e-4, 0.5)


def test_no_path_is_the_quickstart() -> None:
    quickstart = load(QUICKSTART)
    assert load() == quickstart
    assert load(overrides=["seed=5"]) == quickstart.model_copy(update={"seed": 5})


@pytest.mark.parametrize(
    ("values", "unknown", "nearest"),
    [
        ({"sed": 1}, "sed", "seed"),
        ({"algo": {"gama": 0.9}}, "algo.gama", "algo.gamma"),
        ({"algo": {"alpha": {"innit": 0.1}}}, "algo.alpha.innit", "algo.alpha.init"),
        ({"algo": {"type": "ppo", "epoch": 2}}, "algo.epoch", "algo.epochs"),
        ({"algo": {"type": "sac", "epoch": 2}}, "algo.epoch", None),
        ({"model": {"lora": {"rang": 4}}}, "model.lora.rang", "model.lora.rank"),
        ({"evaluation": {"episode": 3}}, "evaluation.episode", "evaluation.episodes"),
    ],
)
def test_an_unknown_key_names_the_nearest(values: dict[str, Any], unknown: str, nearest: str | None) -> None:
    hint = f"did you mean {nearest!r}?" if nearest else "known here: type, gamma, reward_scale, batch_size"
    assert _fault(values).startswith(f"unknown setting {unknown!r}; {hint}")


def test_an_unknown_key_like_no_other_lists_those_there_are() -> None:
    fault = _fault({"learners": {"xxxxx": 1}})
    assert fault == "unknown setting 'learners.xxxxx'; known here: count, zero_stage"
    with pytest.raises(ConfigError, match=r"'replay.hindsight.type:future'; a colon needs a space after it"):
        load(None, ["replay.hindsight={type:future}"])


def test_a_setting_of_another_algorithm_is_named_as_such() -> None:
    assert _fault({"algo": {"type": "ppo", "n_step": 3}}) == "algo.n_step is a setting of algo.type sac and awac"
    assert _fault({"partner": {"budget": 3}}) == "partner.budget is a setting of partner.type judge"


def test_every_fault_gets_a_line() -> None:
    lines = _fault({"sed": 1, "algo": {"gamma": 2, "n_step": 0}}).splitlines()
    assert len(lines) == 3
    assert sorted(line.split(":")[0].split(";")[0] for line in lines) == [
        "algo.gamma",
        "algo.n_step",
        "unknown setting 'sed'",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", -1),
        ("seed", -1),
        ("env.copies", -1),
        ("algo.gamma", 0),
        ("algo.gamma", 1.01),
        ("algo.n_step", 0),
        ("algo.tau", 0),
        ("algo.tau", 1.5),
        ("algo.actor_lr", 0),
        ("algo.actor_lr", float("inf")),
        ("algo.critic_lr", float("nan")),
        ("algo.max_grad_norm", -1),
        ("algo.warmup_updates", -1),
        ("algo.alpha.init", 0),
        ("algo.alpha.lr", -1e-3),
        ("algo.alpha.target_entropy", float("nan")),
        ("critic.hidden", [64, 0]),
        ("critic.num_critics", 0),
        ("policy.temperature", 0),
        ("replay.hindsight.share", 1.5),
        ("replay.hindsight.share", -0.5),
        ("replay.hindsight.type", "all"),
        ("critic.backbone", "none"),
        ("model.dtype", "float16"),
        ("device", "gpu"),
        ("algo.type", "dqn"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(key: str, value: object) -> None:
    fault = _fault(_nested(key, value))
    assert fault.startswith(key)
    assert len(fault.splitlines()) == 1
    shown = value[-1] if isinstance(value, list) else value
    assert f"(got {shown!r})" in fault


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", "many"),
        ("steps", 1.5),
        ("algo", 3),
        ("algo.gamma", [0.9]),
        ("algo.alpha", None),
        ("env.options", "size"),
        ("replay.hindsight", 3),
        ("critic.hidden", 64),
        ("device", 0),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(key: str, value: object) -> None:
    fault = _fault(_nested(key, value))
    assert fault.startswith(f"{key}: ")
    assert f"(got {value!r})" in fault


def test_a_key_that_is_no_text_is_refused() -> None:
    assert "algo.1" in _fault({"algo": {1: 2}})


def _nested(key: str, value: object) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def test_copies_that_do_not_divide_the_interval_are_refused() -> None:
    fault = _fault({"env": {"copies": 5}, "algo": {"update_interval": 32}})
    assert fault.startswith("algo.update_interval (32) must be a multiple of env.copies (5)")
    assert parse({"env": {"copies": 8}, "algo": {"update_interval": 32}}).env.copies == 8


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"engines": {"count": 1}}, "vLLM 0.32 has no bitsandbytes; set engines.count to 0"),
    ],
)
def test_what_a_base_in_4_bits_does_not_go_with(values: dict[str, Any], fault: str) -> None:
    assert parse({"model": {"quantize": "nf4"}, "learners": {"count": 1}}).model.quantize == "nf4"
    parse(values)
    assert re.search(fault, _fault(values | {"model": {"quantize": "nf4", **values.get("model", {})}}))


def test_overrides_win_in_their_order_and_are_read_as_yaml(tmp_path: Path) -> None:
    config = load(
        _write(tmp_path, "seed: 1\nalgo: {gamma: 0.5, n_step: 2}"),
        [
            "algo.gamma=0.8",
            "algo.gamma=0.9",
            "algo.alpha.lr=1e-4",  # YAML takes this for a text
            "env.options.size=simple",
            "env.options={num_objects: 4}",
            "env.options.note=a=b",
            "critic.hidden=[8, 9]",
            "algo.max_grad_norm=null",
            "replay.hindsight=none",
            "device=cpu",
        ],
    )
    assert (config.seed, config.algo.n_step, config.algo.gamma) == (1, 2, 0.9)
    assert config.algo.alpha.lr == 1e-4
    assert config.env.options == {"num_objects": 4, "note": "a=b"}
    assert config.critic.hidden == [8, 9]
    assert config.algo.max_grad_norm is None
    assert config.replay.hindsight == NoHindsight()
    assert config.device == "cpu"


@pytest.mark.parametrize("override", ["algo.gamma", "=0.9", "algo", ""])
def test_an_override_without_key_or_value_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        load(_write(tmp_path, ""), [override])


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("seed.deeper=1", "seed: Input should be a valid integer"),
        ("algo=sac algo.gamma=1", "'algo' is a value, not a section"),
        ("algo.gamma=[1", "not valid YAML"),
        ("algo.gamma=", "algo.gamma"),
        ("algo..gamma=1", "unknown setting 'algo.'"),
    ],
)
def test_an_override_that_makes_no_sense_is_refused(tmp_path: Path, override: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        load(_write(tmp_path, "seed: 1"), override.split())


def test_it_is_frozen() -> None:
    config = parse({})
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 1
    with pytest.raises(ValidationError, match="frozen"):
        config.algo.alpha.init = 1.0


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**40),
    gamma=st.floats(1e-12, 1),
    lr=st.floats(1e-300, 1e30),
    options=st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=5)),
    hidden=st.lists(st.integers(1, 5000), max_size=3),
)
def test_yaml_round_trip(
    seed: int,
    gamma: float,
    lr: float,
    options: dict[str, Any],
    hidden: list[int],
) -> None:
    config = parse(
        {
            "seed": seed,
            "env": {"options": options},
            "critic": {"hidden": hidden},
            "algo": {"gamma": gamma, "actor_lr": lr, "max_grad_norm": lr, "alpha": {"init": lr}},
        }
    )
    assert parse(yaml.safe_load(config.to_yaml())) == config


def test_a_base_has_what_the_file_does_not_set(tmp_path: Path) -> None:
    (tmp_path / "below.yaml").write_text("base: quickstart\nmodel: {name: mine}\nenv: {options: {size: 3}}\n")
    (tmp_path / "above.yaml").write_text("base: below.yaml\nsteps: 99\nalgo: {alpha: {init: 0.2}}\n")
    quickstart, found = load(), load(tmp_path / "above.yaml", ["seed=4"])
    assert (found.steps, found.seed, found.model.name) == (99, 4, "mine")
    assert found.model.lora == quickstart.model.lora
    assert (found.env.name, found.env.options) == (quickstart.env.name, {"size": 3})
    assert found.algo.type == "sac"
    assert (found.algo.alpha.init, found.algo.alpha.target_entropy) == (0.2, quickstart.algo.alpha.target_entropy)
    assert found.algo.gamma == quickstart.algo.gamma


def test_the_base_s_environment_keeps_its_options_if_it_is_named_again(tmp_path: Path) -> None:
    file = _write(tmp_path, "env: {name: playground, options: {size: simple}}")
    assert load(file, ["env.name=playground"]).env.options == {"size": "simple"}
    assert load(file, ["env.name=bitflip"]).env.options == {}


def test_another_environment_or_algorithm_than_its_base_s_starts_afresh(tmp_path: Path) -> None:
    (tmp_path / "below.yaml").write_text("env: {name: bitflip, copies: 4, options: {bits: 3}}\nalgo: {tau: 0.5}\n")
    (tmp_path / "above.yaml").write_text("base: below.yaml\nenv: {name: playground}\nalgo: {type: ppo, epochs: 2}\n")
    found = load(tmp_path / "above.yaml")
    assert (found.env.name, found.env.copies, found.env.options) == ("playground", 4, {})
    assert (found.algo.type, found.algo.epochs) == ("ppo", 2)


def test_overrides_are_like_a_file_on_that_base(tmp_path: Path) -> None:
    file = _write(
        tmp_path, "env: {name: bitflip, options: {bits: 3}}\ngoals: progress\npartner: {type: judge, budget: 5}"
    )
    found = load(file, ["env.name=playground", "goals.by=goal", "partner.type=judge", "partner.threshold=0.7"])
    assert (found.env.name, found.env.options) == ("playground", {})
    assert found.goals == ProgressConfig(by="goal")
    assert found.partner == JudgeConfig(budget=5, threshold=0.7)
    assert load(file, ["partner.type=scored"]).partner == ScoredConfig()


@pytest.mark.parametrize(
    ("base", "said"),
    [("it.yaml", "which is its own base"), ("3", "expected the path or name"), ("gone.yaml", "cannot read")],
)
def test_a_base_that_is_none_is_refused(base: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "it.yaml").write_text(f"base: {base}\n")
    with pytest.raises(ConfigError, match=said):
        load(tmp_path / "it.yaml")


def test_every_configuration_that_comes_with_sacglam_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"quickstart", "paper/sac_her_flan_t5_base", "paper/sac_her_qwen2.5_0.5b", "ablations/ppo"} < {*names()}
    assert [load(name) for name in names()] == [load(located(name)) for name in names()]
    assert load("quickstart") == load(QUICKSTART) != load("full/sac_her")
    (tmp_path / "quickstart").mkdir()  # a run called so
    assert load("quickstart") == load(QUICKSTART)
    (tmp_path / "mine.yaml").write_text("base: full/sac_her\nsteps: 3200\n")
    assert load("mine.yaml") == load("full/sac_her", ["steps=3200"])


def test_a_file_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").write_text("base: simple/ppo\nsteps: 64\n")
    assert load("quickstart") == load("simple/ppo", ["steps=64"])
    assert load() == load(QUICKSTART)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("quickstrt", "Did you mean 'quickstart'?"),
        ("configs/full/sac_her.yaml", "Did you mean 'full/sac_her'?"),
        ("nothing like it", "Expected a path, or one of ablations/base, "),
        ("zzz.yaml", "No such file or directory"),
        ("../configs/quickstart", "Did you mean"),
        ("a", "Did you mean 'a.yaml'?"),
        ("my_castle.yml", "Did you mean 'my_castle.yaml'?"),
    ],
)
def test_a_name_that_is_not_there_gets_a_hint(
    name: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("a.yaml", "my_castle.yaml"):
        (tmp_path / file).touch()
    with pytest.raises(ConfigError, match=re.escape(hint)):
        load(name)


def test_a_run_s_own_configuration_has_no_base() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'base'"):
        parse_complete("base: quickstart\n" + Config().to_yaml())


def test_a_target_entropy_may_be_relative_to_the_random_policy_s() -> None:
    def target(value: object) -> float:
        algo = parse({"algo": {"alpha": {"target_entropy": value}}}).algo
        assert isinstance(algo, SacConfig)
        return algo.alpha.target(2.0)

    assert [target(value) for value in (0.3, 0, "25%", "0.5%", "100%")] == [0.3, 0.0, 0.5, 0.01, 2.0]
    for value in ("25", "101%", "-1%", "%", True, None):
        with pytest.raises(ConfigError, match="a number of nats, or a percentage such as 22%"):
            target(value)


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    assert load(_write(tmp_path, "")) == Config()
    assert load(_write(tmp_path, "# nothing\n")) == Config()


@pytest.mark.parametrize(("text", "kind"), [("- a\n- b", "list"), ("seed", "str"), ("3", "int")])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"mapping of settings, got {kind}"):
        load(_write(tmp_path, text))


@pytest.mark.parametrize("text", ["algo: {gamma: 0.9", "a: b: c", "\tseed: 1", "seed: !!python/object:os.system {}"])
def test_yaml_that_is_none_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)experiment.yaml is not valid YAML: .*line 1"):
        load(_write(tmp_path, text))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_bytes(b"\x80\x81seed: 1")
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*experiment.yaml"):
        load(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.yaml: No such file"):
        load(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="found a folder"):
        load(tmp_path)


def test_a_pipe_an_endless_and_a_huge_file_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with (tmp_path / "huge.yaml").open("wb") as huge:
        huge.truncate(1 << 40)
    kinds = {tmp_path / "pipe.yaml": "named pipe", Path("/dev/zero"): "device", tmp_path / "huge.yaml": "at most"}
    for file, said in kinds.items():
        with within(5), pytest.raises(ConfigError, match=said):
            load(file)


def test_every_setting_explains_itself() -> None:
    missing = []
    sections: list[tuple[str, type[Any]]] = [("", Config)]
    while sections:
        prefix, section = sections.pop()
        for name, field in section.model_fields.items():
            annotation = field.annotation
            if isinstance(annotation, type) and issubclass(annotation, Named):
                sections += [(f"{prefix}{name}.", annotation.kind(kind)) for kind in annotation.shipped]
            elif isinstance(annotation, type) and issubclass(annotation, Section):
                sections.append((f"{prefix}{name}.", annotation))
            elif field.description is None and name != "type":  # the discriminator of a union
                missing.append(f"{prefix}{name}")
    assert missing == []


def test_the_type_selects_the_algorithm() -> None:
    assert isinstance(parse({}).algo, SacConfig)
    assert isinstance(parse({"algo": {"gamma": 0.5}}).algo, SacConfig)
    ppo = parse({"algo": {"type": "ppo", "gamma": 0.5}}).algo
    assert isinstance(ppo, PpoConfig)
    assert ppo.gamma == 0.5
    assert _fault({"algo": {"type": "dqn"}}) == "algo.type: expected one of sac, ppo, awac, or module:Class (got 'dqn')"
    assert _fault({"algo": 3}).startswith("algo: ")


def test_ppo_counts_the_updates_of_an_interval() -> None:
    # 16 epochs over 2,048 steps in 8 minibatches of 256; the ninth of 2,049 steps is a short one.
    assert PpoConfig().updates == 16 * 8
    assert PpoConfig(update_interval=2049, epochs=1).updates == 9


def test_ppo_does_not_lag() -> None:
    values = {"algo": {"type": "ppo"}, "runtime": {"lag": 1}, "engines": {"count": 1}, "learners": {"count": 1}}
    assert "runtime.lag must be 0: PPO learns from its current policy's steps alone" in _fault(values)


def test_ppo_survives_yaml() -> None:
    config = parse({"algo": {"type": "ppo", "epochs": 3}})
    assert parse(yaml.safe_load(config.to_yaml())) == config


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algo.gamma=yes", "algo.gamma: Input should be a valid number"),
        ("algo.n_step=yes", "algo.n_step: Input should be a valid integer"),
        ("steps=12:30", "steps: Input should be a valid integer"),
        ("algo.batch_size=010", "algo.batch_size: Input should be a valid integer"),
        ("replay.hindsight=1", "replay.hindsight: Input should be a valid dictionary or instance of Hindsight"),
        ("seed=18446744073709551616", "seed: Input should be less than"),
        ("replay.capacity=100000000000", "replay.capacity: Input should be less than"),
        ("critic.num_critics=100000", "critic.num_critics: Input should be less than"),
        ("model.lora.rank=1000000", "model.lora.rank: Input should be less than"),
        ("algo.gamma=" + "[" * 100_000, "is not valid YAML"),
        ("env.options={a: " + "[" * 60 + "]" * 60 + "}", "nested too deeply"),
        ("env.options={a: !!binary aGVsbG8=}", "env.options.a"),
        ("env.options={a: {1: 2}}", "env.options.a"),
        ("env.options={a: !!int 0x" + "f" * 5000 + "}", "has a huge number"),
        ("seed=!!bool z", "a tag such as !!bool does not fit"),
        ("seed=!!timestamp z", "a tag such as !!bool does not fit"),
        ("seed=!!int", "a tag such as !!bool does not fit"),
    ],
)
def test_values_of_another_type_or_size_are_refused(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(None, [override])


def test_numbers_are_read_as_yaml_1_2_has_them() -> None:
    config = load(None, ["algo.actor_lr=1e-4", "env.options={when: 2026-01-01, at: 12:30, code: 010, on: yes}"])
    assert config.algo.actor_lr == 1e-4
    assert config.env.options == {"when": "2026-01-01", "at": "12:30", "code": "010", "on": "yes"}


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text("algo: {gamma: 0.5}\nseed: 1\nalgo: {n_step: 2}\n")
    with pytest.raises(ConfigError, match="'algo' appears twice"):
        load(path)


def test_a_long_value_is_not_quoted_whole() -> None:
    with pytest.raises(ConfigError) as raised:
        load(None, ["steps=" + "x" * 1_000_000])
    assert len(str(raised.value)) < 1000


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text("seed: 7\n")
    assert load(str(tmp_path / "experiment.yaml")).seed == 7


def test_a_file_that_was_cut_off_is_no_complete_configuration() -> None:
    text = load(None).to_yaml()
    assert parse_complete(text) == load(None)
    for end in range(len(text)):
        with pytest.raises(ConfigError):
            parse_complete(text[:end])


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("replay.random_steps=2560", "leaves none of the 2560 steps to learn in"),
        ("replay.random_steps=2529", "leaves none of the 2560 steps to learn in"),  # an interval has 32 steps
        ("algo=ppo replay.demonstrations=episodes.jsonl", "can only imitate replay.demonstrations: set"),
        ("partner={type: judge, imagine: 0.5} replay.hindsight=none", "hindsight none never relabels with goals"),
        ("partner={type: judge, pursue: 0.5}", r"partner\.pursue needs goals to pursue: set partner\.imagine"),
        ("steps=0", "nothing would be learnt: raise it, or learn from demonstrations alone"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(setting: str, expected: str) -> None:
    load(None, ["steps=2560", "replay.random_steps=2528"])
    load(None, ["partner={type: judge, imagine: 0.5, pursue: 0.3}", "replay.hindsight=none"])
    with pytest.raises(ConfigError, match=expected):
        load(None, ["steps=2560", *re.split(r" (?=replay)", setting)])


def test_a_run_made_before_a_key_existed_has_its_default() -> None:
    imitation = ("self_imitation", "exploration")
    later = ("td_lambda", *imitation, "layers", "random_steps")
    lines = re.sub(r"^prompt:\n(  .*\n|\n)+", "", load(None).to_yaml(), flags=re.M).splitlines(keepends=True)
    kept = [line for line in lines if line.strip().split(":")[0] not in later]
    assert len(kept) == len(lines) - len(later)
    config = parse_complete("".join(kept))
    found, model = config.algo, config.model
    assert isinstance(found, SacConfig)
    assert model.lora.layers is None
    assert config.prompt == PromptConfig()
    assert found.td_lambda is None
    assert (found.self_imitation, found.exploration) == (0.0, 0.0)
    assert found.n_step == load(None).algo.n_step
    for end in range(1, len(kept)):
        with pytest.raises(ConfigError, match=r"cut off|expected|valid"):
            parse_complete("".join(kept[:end]))


def test_aliases_that_multiply_are_refused_before_they_are_quoted() -> None:
    lists = "&a0 [x]" + "".join(f", &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))  # 43 million values
    with pytest.raises(ConfigError, match="more than 100,000 values"):
        load(None, [f"steps=[{lists}]"])
    assert load(None, ["critic.hidden=[&a 8, *a]"]).critic.hidden == [8, 8]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("replay.sampling=future", "replay.sampling is replay.hindsight.type now"),
        ("replay.hindsight_ratio=0.3", "replay.hindsight_ratio is replay.hindsight.share now"),
    ],
)
def test_an_old_key_is_refused_with_the_new_name(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(None, [override])


def test_another_environment_keeps_only_copies_and_workers() -> None:
    own = "env={name: house:House, options: {max_steps: 4}, reward: environment, success_reward: 20, repeats: false}"
    other = override(load(None, [own, "env.copies=4", "env.workers=2"]), ["env.name=bitflip"]).env
    assert other == EnvConfig(name="bitflip", copies=4, workers=2)


def test_another_type_starts_from_its_own_defaults_in_whatever_order() -> None:
    assert load(None).replay.hindsight == Graph(share=0.8)
    assert load(None, ["replay.hindsight.type=future"]).replay.hindsight == Future()
    both = ["replay.hindsight.share=0.3", "replay.hindsight.type=ratio"]
    assert load(None, both).replay.hindsight == load(None, both[::-1]).replay.hindsight == Ratio(share=0.3)
    assert load(None, ["replay.hindsight.type=graph"]).replay.hindsight == Graph(share=0.8)
    ppo = load(None, ["algo.epochs=2", "algo.type=ppo"]).algo
    assert ppo == PpoConfig(epochs=2)


def test_another_kind_keeps_what_both_inherit() -> None:
    quickstart = load("quickstart").algo
    awac = load("quickstart", ["algo.type=awac", "algo.tau=0.1"]).algo
    shared = {name: getattr(quickstart, name) for name in OffPolicyConfig.model_fields if name != "type"}
    assert awac == AwacConfig(**shared | {"tau": 0.1})
    assert load("simple/awac").algo == AwacConfig(**shared | {"max_grad_norm": None})
    judge = load(None, ["partner={type: judge, budget: 500, threshold: 0.8}"])
    assert override(judge, ["partner.type=scored"]).partner == ScoredConfig(threshold=0.8)


def test_a_subclass_takes_over_the_settings_of_the_kind_that_it_extends() -> None:
    sac = load(None).algo
    cql = load(None, ["algo.type=docs.examples.cql:CqlConfig", "algo.gamma=0.7"]).algo
    assert type(cql).__name__ == "CqlConfig"
    assert cql.model_dump(exclude={"type", "conservatism"}) == sac.model_dump(exclude={"type"}) | {"gamma": 0.7}
    with pytest.raises(ConfigError, match=r"algo\.type: expected one of sac, ppo, awac, or module:Class \(got 'dqn'\)"):
        load(None, ["algo.type=dqn", "algo.gamma=0.7"])


@pytest.mark.parametrize(
    ("overrides", "forwards"),
    [
        ([], 65),
        (["critic.target_backbone=online"], 49),
        (["critic.backbone=frozen", "critic.target_backbone=online"], 49),
        (["critic.backbone=separate"], 97),
        (["critic.backbone=separate", "critic.target_backbone=online"], 97),
        (["algo.batch_size=128", "algo.updates_per_interval=8"], 129),
        (["critic.backbone=separate", "critic.target_backbone=online", "algo.n_step=8", "algo.td_lambda=0.9"], 69),
        (["critic.backbone=separate", "algo.n_step=8", "algo.td_lambda=0.9"], 85),
        (["algo={type: ppo}"], 33),
        (["algo={type: ppo, epochs: 4, update_interval: 480}", "critic.backbone=separate"], 17),
    ],
)
def test_forwards_of_a_step(overrides: list[str], forwards: float) -> None:
    """With the paper's 2 updates of 256 every 32 steps: 1 + 16 x 4 = 65, and with PPO's 16 epochs 1 + 16 x 2 = 33."""
    config = override(Config(), overrides)
    interval = config.algo.update_interval
    assert config.forward_passes(interval, config.algo.updates) == forwards * interval
    assert config.forward_passes(interval, 0) == interval  # before the first update


def test_random_steps_take_no_forward_pass() -> None:
    config = override(Config(), ["replay.random_steps=64"])
    assert [config.forward_passes(steps, 0) for steps in (32, 64, 96)] == [0, 0, 32]


@pytest.mark.parametrize("override", ["env.name={}:make", "algo.type={}:Config"])
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_package", r"its module raised\n.*import no_such_package.*ModuleNotFoundError"),
        ("len(3)", r"its module raised\n.*len\(3\)\n.*TypeError"),
        ("raise SystemExit(0)", r"its module raised\n.*SystemExit"),
        ("pass", "Check the spelling after the colon"),
    ],
)
def test_the_error_of_one_s_own_module_comes_with_its_traceback(
    override: str, code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"mine_{abs(hash((override, code)))}"
    (tmp_path / f"{module}.py").write_text(f"{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        make(load(None, [override.format(module)]).env.name)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("nowhere.mine:make", r"Is it on the Python path\?"),
        (":make", r"Is it on the Python path\?"),
        ("./here/mine.py:make", "Expected a module's name, such as here.mine, not that of a file"),
        ("here.mine:make", r"Its file is here: export PYTHONPATH=\. lets Python find it"),
    ],
)
def test_a_module_that_is_not_on_the_path(
    name: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])  # "" is the current folder
    with pytest.raises(ConfigError, match=f"cannot be imported: .*{advice}"):
        make(name)
