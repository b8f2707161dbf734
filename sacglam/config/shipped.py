"""The configurations that come with sacglam, by name: `quickstart`, `paper/sac_her_flan_t5_base`, ..."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "configs"
QUICKSTART = FOLDER / "quickstart.yaml"


def names() -> list[str]:
    """All of them."""
    return sorted(file.relative_to(FOLDER).with_suffix("").as_posix() for file in FOLDER.rglob("*.yaml"))


def located(given: str | Path, folder: Path = Path()) -> Path:
    """The file at a path relative to `folder`; where there is none, the configuration of that name."""
    file = folder / given
    return FOLDER / f"{given}.yaml" if Path(given).as_posix() in names() and not file.is_file() else file
