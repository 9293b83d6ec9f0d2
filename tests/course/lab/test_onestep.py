import pytest

from course.lab.onestep import NORMS, distances


@pytest.mark.parametrize("method", ["ddp", "ddp-by-hand"])
def test_two_ranks_step_as_one_device_wherever_batch_norm_sees_the_same_rows(method):
    cases = [(method, norm) for norm in NORMS]
    found = distances(cases, timeout=600)
    assert list(found) == cases
    for (_, norm), (moved, far) in found.items():
        assert moved > 1e-3  # there was a step
        if norm == "train":  # each rank's own statistics: another step
            assert far > 0.1 * moved
        else:
            assert far <= 1e-10


@pytest.mark.parametrize("method, norm, message", [
    ("dp", "eval", "method must be one of ddp, ddp-by-hand, got 'dp'"),
    ("ddp", "group", "norm must be one of eval, train, shards, sync, got 'group'")])
def test_another_method_or_norm_is_refused(method, norm, message):
    with pytest.raises(ValueError, match=message):
        distances([("ddp", "eval"), (method, norm)])
