"""`sacglam` and `python -m sacglam`: the command line."""

import os

from sacglam.runs.stopping import die_on_interrupt


def main() -> None:
    """Run the command line, which takes a moment to import."""
    die_on_interrupt()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait busily stall each other on shared cores
    from sacglam import cli

    cli.main()


if __name__ == "__main__":
    main()
