"""Fuzzers: hostile configurations and damaged run folders. Only a clear refusal or a right result will do.

`pytest tests/fuzz -n 0 --fuzz 2000 --fuzz-seed 7` runs 2,000 examples of each, and without options some seconds' worth.
Outcomes are counted and printed at the end, with the seed.
"""

from collections import Counter

EXAMPLES: int | None = None
"""As `--fuzz` gives it; None: each fuzzer's own number."""
SEED = 0
COUNTS: Counter[str] = Counter()
"""Outcomes by fuzzer."""
