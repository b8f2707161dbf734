"""Actor and critic on one language model, behind the packed forward."""

import logging

# peft imports bitsandbytes, which would log that a package for 4-bit products on CPUs is missing. Nothing needs it.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
