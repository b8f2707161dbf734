"""Makes the tiny models that configurations name, if they are missing, each from random play in its environment.

    python -m benchmarks.battery.models configs/battery/*.yaml

A model takes one to five CPU minutes. Nothing is chosen: the command is the one of docs/start/environments.md.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from sacglam.config import Config, load


def command(config: Config, folder: Path) -> list[str]:
    """The command that makes the model for this environment, with its options and prompt."""
    settings = {f"env.options.{key}": value for key, value in config.env.options.items()}
    settings |= {f"prompt.{key}": value for key, value in config.prompt.model_dump(exclude_unset=True).items()}
    overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    sacglam = [sys.executable, "-m", "sacglam"]
    return [*sacglam, "pretrain", str(folder), "--env", config.env.name, *overrides]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    for config in map(load, parser.parse_args().files):
        model = Path(config.model.name)
        if len(model.parts) > 1 and not model.exists():  # else it is `builtin`, or already made
            model.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=model.parent) as unfinished:
                made = Path(unfinished, model.name)
                subprocess.run(command(config, made), check=True)
                made.rename(model)


if __name__ == "__main__":
    main()
