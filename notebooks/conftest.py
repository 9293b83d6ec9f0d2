"""For `pytest --nbval notebooks`: kernels that need no port."""

import nbval.kernel
from jupyter_client import KernelManager
from kernels import ipc  # notebooks/tools, which pyproject.toml puts on the path

nbval.kernel.KernelManager = lambda **kwargs: KernelManager(**ipc(), **kwargs)
