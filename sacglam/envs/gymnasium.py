"""Where `sacglam.worlds.gymnasium` was, for describers that import it from here and ids that name it."""

import sys
from importlib import import_module

sys.modules[__name__] = import_module("sacglam.worlds.gymnasium")
