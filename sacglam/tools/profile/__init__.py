"""`sacglam profile`: where the time of a run goes, measured on the run's own loop."""
