"""Which runs there are, in which order, and on which grid they are evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

from sacglam import config as configuration
from sacglam.errors import ConfigError
from sacglam.tools.experiments import plan


def files(folder: Path, *names: str) -> list[Path]:
    """The quickstart under other names."""
    made = [folder / f"{name}.yaml" for name in names]
    for file in made:
        file.write_text(configuration.QUICKSTART.read_text())
    return made


def test_seeds_alternate_and_the_first_place_goes_round(tmp_path: Path) -> None:
    experiment = plan.comparison(files(tmp_path, "a", "b", "c"))
    order = [(run.variant.name, run.seed) for run in plan.runs(experiment, range(4), [], tmp_path)]
    assert "".join(name for name, _ in order) == "abc" + "bca" + "cab" + "abc"
    assert [seed for _, seed in order] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


@pytest.mark.parametrize(("text", "named"), [("1", [0]), ("3", [0, 1, 2]), ("10-12", [10, 11, 12]), ("7-7", [7])])
def test_seeds_are_a_number_or_the_first_and_the_last(text: str, named: list[int]) -> None:
    assert list(plan.seeds(text)) == named


@pytest.mark.parametrize("text", ["0", "13-10", "-3", "a", "1,2", "", "1001", "99999999999"])
def test_no_seeds_or_too_many_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--seeds: expected a number of seeds such as 4.* got {text!r}"):
        plan.seeds(text)


def test_a_run_is_started_as_a_person_would(tmp_path: Path) -> None:
    experiment = plan.comparison(files(tmp_path, "a"))
    run = plan.runs(experiment, range(2), ["steps=640", "threads=2"], tmp_path / "out")[1]
    folder = tmp_path / "out/a-seed1"
    assert run.directory.root == folder
    expected = ["train", str(tmp_path / "a.yaml"), "--seed=1", f"--out={folder}"]
    assert run.command()[1:] == ["-P", "-m", "sacglam", *expected, "--set", "steps=640", "--set", "threads=2"]
    assert (run.config.seed, run.config.steps, run.config.threads) == (1, 640, 2)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(run.config.to_yaml())
    assert run.command()[4:] == ["train", "--resume", str(folder), "--trust"]


def test_a_variant_s_name_is_that_of_one_folder(tmp_path: Path) -> None:
    [base] = files(tmp_path, "base")
    for each, expected in [((), "base"), (("model.name=models/kitchen",), "model.name=models%2Fkitchen")]:
        variant = plan.Variant(base=base, set=each)
        assert plan.Run(variant, 0, (), tmp_path).directory.root == tmp_path / f"{expected}-seed0"
    one, other = (plan.Variant(base=base, set=(f"model.name={'é' * 130}{end}",)).name for end in "ab")
    assert one != other
    for name in (one, other):
        (tmp_path / f"{name}-seed999.txt").touch()


def test_files_of_one_name_go_by_their_folders_too(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    experiment = plan.comparison(files(tmp_path / "one", "a", "b") + files(tmp_path / "other", "a"))
    assert [*experiment.groups[0].variants] == ["one_a", "b", "other_a"]
    folders = [run.directory.root.name for run in plan.runs(experiment, range(1), [], tmp_path)]
    assert folders == ["one_a-seed0", "b-seed0", "other_a-seed0"]
    with pytest.raises(ConfigError, match="would both be called 'one_a'"):
        plan.comparison(files(tmp_path / "one", "a") * 2)


def test_each_environment_is_a_group_of_its_own(tmp_path: Path) -> None:
    written = {
        "sac": "env: {name: bitflip, options: {bits: 4}}",
        "full": "env: {name: playground}",
        "ppo": "env: {name: bitflip, options: {bits: 4}}\nalgo: {type: ppo}",
    }
    for name, text in written.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    named = [tmp_path / f"{name}.yaml" for name in written]
    groups = plan.comparison(named).groups
    assert [(group.title, list(group.variants)) for group in groups] == [
        ("bitflip, bits 4", ["sac", "ppo"]),
        ("playground", ["full"]),
    ]
    joined = plan.comparison(named, ["env.name=bitflip", "env.options={bits: 5}"]).groups
    assert [(group.title, list(group.variants)) for group in joined] == [("Success", ["sac", "full", "ppo"])]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([{}, {}], 352),  # 7,200 / 20 = 360, to the nearest multiple of 32
        ([{"every": 640}, {"every": 640}], None),
        ([{"every": 640}, {}], 640),
        ([{"every": 640}, {"every": 320}], 352),
        ([{}, {"interval": 512}], 512),
        ([{"steps": 64}, {}], 32),
    ],
)
def test_all_are_evaluated_at_the_same_steps(settings: list[dict[str, int]], expected: int | None) -> None:
    configs = [
        configuration.load(
            None,
            [
                f"evaluation.every_steps={given.get('every', 0)}",
                f"algo.update_interval={given.get('interval', 32)}",
                f"steps={given.get('steps', 7200)}",
            ],
        )
        for given in settings
    ]
    assert plan.evaluation_grid(configs) == expected
