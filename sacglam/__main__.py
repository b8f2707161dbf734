"""`python -m sacglam`: the command line."""

from sacglam.cli import main

main()
