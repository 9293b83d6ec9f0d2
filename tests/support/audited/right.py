"""All programs that are right, by name, and what of them can be compared with what.

RIGHT: name -> function that returns the arguments of `audit`
REPLICAS_ONLY: name -> why one device does not compute the same
TOLERANCE: name -> how far from one device, where it is not 1e-10
FLOAT32: names of those that cast to float32 themselves
"""

from importlib import import_module

FILES = ["optimizers", "schedules", "sync", "ddp", "uneven", "batches", "models",
         "language", "losses", "contrastive", "random", "unusual", "given_out"]
RIGHT, REPLICAS_ONLY, TOLERANCE, FLOAT32 = {}, {}, {}, set()
for file in FILES:
    module = import_module(f"tests.support.audited.right_{file}")
    twice = RIGHT.keys() & module.RIGHT.keys()
    if twice:
        raise ValueError(f"two programs have one name: {twice}")
    RIGHT.update(module.RIGHT)
    REPLICAS_ONLY.update(getattr(module, "REPLICAS_ONLY", {}))
    TOLERANCE.update(getattr(module, "TOLERANCE", {}))
    FLOAT32.update(getattr(module, "FLOAT32", ()))
