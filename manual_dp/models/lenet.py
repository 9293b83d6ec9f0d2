"""LeNet as an `nn.Module`: the eight tensors and the function of `manual_dp.lenet`."""

from torch import nn

from manual_dp.lenet import init_params, lenet


class LeNet(nn.Module):
    """Hold LeNet's eight tensors as parameters.

    params: eight tensors to copy, by default drawn by `init_params("he")`.
    """

    def __init__(self, params=None):
        super().__init__()
        params = init_params("he") if params is None else params
        self.params = nn.ParameterList(p.detach().clone() for p in params)

    def forward(self, X):
        """Map images (n, 1, 28, 28) to scores (n, 10)."""
        return lenet(X, list(self.params))
