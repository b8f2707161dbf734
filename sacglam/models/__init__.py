"""Actor and critic on one language model, behind the packed forward."""

import logging

# bitsandbytes, which peft imports, would log that it lacks a package for 4-bit products on CPUs that nothing here uses.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
