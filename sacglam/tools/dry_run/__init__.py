"""`sacglam train --dry-run`: what a run loads, how much memory it takes and how long it will last."""
