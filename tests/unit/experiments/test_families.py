"""The ablations that are shipped: what they vary, and where their runs lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sacglam.errors import ConfigError
from sacglam.experiments import families, plan

CONFIGS = Path(__file__).parents[3] / "configs"


def names(family: str) -> list[str]:
    return [variant.name for variant in families.load(family).variants]


def test_the_papers_figures_are_there() -> None:
    assert families.shipped() == ["critic", "n_step", "sampling", "updates"]


def test_they_lie_with_the_other_configurations_too() -> None:
    for name in [*families.shipped(), "base"]:
        assert (CONFIGS / "ablations" / f"{name}.yaml").samefile(families.FOLDER / f"{name}.yaml")


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("critic", ["critic.backbone=frozen", "critic.backbone=frozen,critic.input=observation", "base",
                    "critic.input=observation"]),
        ("sampling", ["base", "replay.sampling=prior", "replay.sampling=uniform", "replay.hindsight=false"]),
        ("n_step", ["algo.n_step=1", "base", "algo.n_step=5", "replay.capacity=2000", "replay.capacity=10000"]),
        ("updates", ["algo.updates_per_interval=2", "algo.updates_per_interval=4", "base", "algo.update_interval=128",
                     "algo.update_interval=128,algo.updates_per_interval=32"]),
    ],
)  # fmt: skip
def test_a_variant_goes_by_what_it_changes(family: str, expected: list[str]) -> None:
    assert names(family) == expected


def test_critic_has_two_panels_of_the_same_labels() -> None:
    first, second = families.load("critic").groups
    assert list(first.members) == list(second.members)
    assert {v.config().critic.backbone for v in first.members.values()} == {"frozen"}
    assert {v.config().critic.backbone for v in second.members.values()} == {"shared"}


def test_the_base_is_the_quickstart_shortened_and_evaluated() -> None:
    quickstart, base = (
        yaml.safe_load(file.read_text()) for file in (CONFIGS / "quickstart.yaml", CONFIGS / "ablations/base.yaml")
    )
    evaluation = {"episodes": 300, "every_steps": 640, "every_episodes": 100}
    assert base == quickstart | {"steps": 5120, "evaluation": evaluation}


def test_another_base_gives_its_name_to_the_folder(tmp_path: Path) -> None:
    for stem in ("base", "other"):
        (tmp_path / f"{stem}.yaml").write_text((families.FOLDER / "base.yaml").read_text())
    (tmp_path / "mine.yaml").write_text("""
title: Mine
paper: no figure
finding: nothing
groups:
  - title: all
    variants:
      a: []
      b: {base: other.yaml}
      c: {base: other.yaml, set: [steps=640, algo.gamma=0.5]}
""")
    experiment = families.load(str(tmp_path / "mine.yaml"))
    assert [v.name for v in experiment.variants] == ["base", "other", "other+algo.gamma=0.5,steps=640"]
    run = plan.runs(experiment, 1, [], tmp_path)[2]
    assert run.folder == tmp_path / "runs/other+algo.gamma=0.5,steps=640/seed0"
    assert (run.config.steps, run.config.algo.gamma) == (640, 0.5)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'critic'\?"):
        families.load("critc")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title: x", "groups: Field required"),
        ("[", "not valid YAML"),
        ("{title: t, paper: p, finding: f, groups: [], bse: x}", "bse: Extra inputs"),
        (
            "{title: t, paper: p, finding: f, groups: [{title: g, variants: {a: {base: quickstart.yaml}}}]}",
            "cannot read the configuration",
        ),
    ],
)
def test_a_wrong_file_is_explained(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        families.load(str(tmp_path / "wrong.yaml"))


def test_a_file_that_is_not_there_is_explained() -> None:
    with pytest.raises(ConfigError, match="cannot read the ablation"):
        families.load("no/such/family.yaml")
