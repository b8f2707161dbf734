"""`sacglam profile`: where the time of a training goes, measured on the training's own loop."""
