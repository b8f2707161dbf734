"""The ablations that are shipped: what they vary, and where their runs lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sacglam.errors import ConfigError
from sacglam.tools.experiments import plan
from sacglam.tools.experiments.plan import Experiment

CONFIGS = Path(__file__).parents[4] / "configs"


def load(given: str | Path) -> Experiment:
    found = plan.from_file(Path(given))
    assert found
    return found


def names(ablation: str) -> list[str]:
    return [variant.name for variant in load(ablation).variants]


def test_the_papers_figures_are_there() -> None:
    assert list(plan.ABLATIONS) == ["critic", "n_step", "sampling", "updates"]


def test_a_base_is_a_name_or_a_file(tmp_path: Path) -> None:
    text = "{title: t, groups: [{title: g, variants: {a: {base: simple/ppo}, b: []}}]}"
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "base.yaml").write_text("steps: 32\n")
    first, second = load(tmp_path / "mine.yaml").variants
    assert (first.name, first.config().algo.label) == ("ppo", "PPO")
    assert (second.name, second.config().steps) == ("base", 32)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("critic", ["critic.backbone=frozen,critic.score_weight=0",
                    "critic.backbone=frozen,critic.input=observation,critic.score_weight=0",
                    "critic.score_weight=0", "critic.input=observation,critic.score_weight=0",
                    "base", "critic.input=observation"]),
        ("sampling", ["base", "replay.hindsight.type=prior", "replay.hindsight.type=uniform",
                      "replay.hindsight.type=none"]),
        ("n_step", ["algo.n_step=1", "algo.n_step=3", "base", "algo.n_step=3,replay.capacity=1000",
                    "algo.n_step=3,replay.capacity=3000"]),
        ("updates", ["algo.updates_per_interval=2", "base", "algo.update_interval=128",
                     "algo.update_interval=128,algo.updates_per_interval=32", "ppo+algo.update_interval=256", "ppo",
                     "ppo+algo.epochs=16", "ppo+algo.epochs=16,algo.update_interval=2048"]),
    ],
)  # fmt: skip
def test_a_variant_goes_by_what_it_changes(family: str, expected: list[str]) -> None:
    assert names(family) == expected


def test_critic_has_three_panels_of_the_same_labels() -> None:
    first, second, third = load("critic").groups
    assert list(first.variants) == list(second.variants) == list(third.variants)
    seen = [{(v.config().critic.backbone, v.config().critic.score_weight) for v in g.variants.values()}
            for g in (first, second, third)]  # fmt: skip
    assert seen == [{("frozen", 0.0)}, {("shared", 0.0)}, {("shared", 0.2)}]


EVALUATED = {"evaluation": {"episodes": 300, "every_steps": 320, "every_episodes": 100}}
RATES = {"actor_lr": 1.6e-3, "critic_lr": 1.6e-3}
TWICE_THE_UPDATES = {"updates_per_interval": 8, "tau": 0.02, "warmup_updates": 40, **RATES}
ALPHA = {"init": 0.05, "target_entropy": 0.5}


def test_the_bases_are_the_simple_game_as_in_the_paper_evaluated_on_the_way() -> None:
    simple, base, plain_ppo, ppo = (
        yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
        for name in ("quickstart", "ablations/base", "simple/ppo", "ablations/ppo")
    )
    del simple["critic"]["target_backbone"], simple["replay"], simple["env"]["copies"], plain_ppo["algo"]["lr_decay"]
    for beyond_the_paper in ("td_lambda", "self_imitation", "exploration", "max_grad_norm"):
        del simple["algo"][beyond_the_paper]
    simple["critic"]["score_weight"] = 0.2  # as `auto` comes to there
    algo = simple["algo"] | TWICE_THE_UPDATES | {"n_step": 5, "alpha": ALPHA}
    assert base == simple | {"steps": 3200, "algo": algo} | EVALUATED
    tried_first = {"gamma": 0.9, "update_interval": 512, "batch_size": 128, "actor_lr": 8e-4, "critic_lr": 8e-4}
    assert ppo == plain_ppo | {"steps": 12288, "algo": plain_ppo["algo"] | tried_first} | EVALUATED


def test_variants_that_families_share_are_evaluated_at_the_same_steps() -> None:
    for name in plan.ABLATIONS:
        configs = [variant.config() for variant in load(name).variants]
        assert plan.evaluation_grid(configs) is None, name  # as their files say


def test_another_base_gives_its_name_to_the_folder(tmp_path: Path) -> None:
    for stem in ("base", "other"):
        (tmp_path / f"{stem}.yaml").write_text((CONFIGS / "ablations" / "base.yaml").read_text())
    (tmp_path / "mine.yaml").write_text("""
title: Mine
groups:
  - title: all
    variants:
      a: []
      b: {base: other.yaml}
      c: {base: other.yaml, set: [steps=640, algo.gamma=0.5]}
""")
    experiment = load(tmp_path / "mine.yaml")
    assert [v.name for v in experiment.variants] == ["base", "other", "other+algo.gamma=0.5,steps=640"]
    run = plan.runs(experiment, range(1), [], tmp_path)[2]
    assert run.directory.root == tmp_path / "other+algo.gamma=0.5,steps=640-seed0"
    assert (run.config.steps, run.config.algo.gamma) == (640, 0.5)


def test_variants_of_one_name_are_of_one_configuration(tmp_path: Path) -> None:
    for folder, steps in (("first", 640), ("second", 1280)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.yaml").write_text(f"{{base: quickstart, steps: {steps}}}")
    text = "{title: t, groups: [{title: g, variants: {a: {base: first/same.yaml}, b: {base: %s/same.yaml}}}]}"
    (tmp_path / "mine.yaml").write_text(text % "first")
    assert [v.name for v in load(tmp_path / "mine.yaml").variants] == ["same"]
    (tmp_path / "mine.yaml").write_text(text % "second")
    with pytest.raises(ConfigError, match="would both be called 'same' and share their runs"):
        load(tmp_path / "mine.yaml")


def test_an_override_that_only_others_make_a_difference_is_in_the_name() -> None:
    base = CONFIGS / "simple" / "sac_her.yaml"  # whose gamma is 0.8; PPO's default is another
    overrides = (["algo.type=ppo"], ["algo.type=ppo", "algo.gamma=0.8"], ["algo.type=ppo", "algo.epochs=2"])
    names = [plan.Variant(base=base, set=tuple(each)).name for each in overrides]
    assert names == [f"sac_her+{','.join(sorted(each))}" for each in overrides]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("groups: []", "title: Field required"),
        ("{title: t, groups: [{title: g, variants: {a: []}, axes: []}]}", "axes: Tuple should have at least 1 item"),
        ("{title: t, groups: [], bse: x}", "bse: Extra inputs"),
        (
            "{title: t, groups: [{title: g, variants: {a: {base: quickstart.yaml}}}]}",
            "cannot read the configuration",
        ),
    ],
)
def test_a_wrong_file_is_explained(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        _ = load(tmp_path / "wrong.yaml").variants


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'critic'"):
        plan.experiment([Path("critc")])
    assert plan.experiment([Path("simple/sac")]).name == "report"


@pytest.mark.parametrize(
    ("text", "said"), [("title: x", "unknown setting 'title'"), ("[", "not valid YAML"), (None, "cannot read")]
)
def test_anything_else_is_read_as_a_configuration(text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        plan.experiment([tmp_path / "wrong.yaml"])


def test_a_configuration_may_have_the_name_of_an_ablation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan.experiment([Path("critic")]).name == "critic"
    Path("critic").write_text("base: quickstart\n")
    assert plan.experiment([Path("critic")]).name == "report"
