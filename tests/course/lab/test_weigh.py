import torch

from course.lab.weigh import operations


def test_operations_are_counted_but_not_views():
    X, p = torch.ones(2, 3), torch.ones(3, requires_grad=True)
    assert operations(lambda: X.view(6).t().split(2)) == 0
    assert operations(lambda: X.view(6).add_(1).sum()) == 2
    # and back: a one to start from, and ones times exp(p); expanding it is a view
    assert operations(lambda: p.exp().sum().backward()) == 4
