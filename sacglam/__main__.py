"""`sacglam` and `python -m sacglam`: the command line."""

from sacglam.runs.stopping import exit_on_interrupt


def main() -> None:
    """Run the command line, which takes a moment to import."""
    exit_on_interrupt()
    from sacglam import cli

    cli.main()


if __name__ == "__main__":
    main()
