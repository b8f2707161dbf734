"""`sacglam train --dry-run`: what a run loads, how much memory it needs and how long it takes."""
