"""`sacglam train --dry-run`: what a training loads, how much memory it takes and how long it will last."""
