"""How many tensor operations a function starts: on a GPU each is a kernel at least."""

from torch.utils._python_dispatch import TorchDispatchMode


def operations(function):
    """Call `function()`; return how many tensor operations it started on the CPU.

    Forward and backward; views, which compute nothing, are not counted. On a GPU each
    one is at least a kernel that Python has to launch.
    """
    with _Counter() as counter:
        function()
    return counter.count


class _Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))
