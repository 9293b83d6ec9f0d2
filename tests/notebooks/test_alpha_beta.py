"""Alpha and beta: found again where they are known, and measured on ranks."""

import pytest
from programs.alpha_beta import fit, measure, predict


def test_what_is_exactly_so_is_found_and_predicted():
    def exact(size):  # a ring of 4: 6 messages of a quarter
        return 6 * (2e-5 + 3e-10 * size / 4)

    found = fit({size: exact(size) for size in (2**12, 2**18, 2**24)}, 4)
    assert found == pytest.approx((2e-5, 3e-10), rel=1e-6)
    assert predict(found, 4, 2**20) == pytest.approx(exact(2**20))


def test_neither_number_is_below_zero():
    alpha, beta = fit({4: 1e-3, 2**20: 1e-4}, 2)  # a larger tensor, and faster
    assert alpha > 0 and beta == 0
    alpha, beta = fit({2**10: 1e-6, 2**20: 1e-1}, 2)  # faster than its bytes allow
    assert alpha == 0 and beta > 0


def test_ranks_are_measured():
    # some seconds: only ranks that are started can be measured
    found = measure(2, [4, 4096], repeat=3)
    assert list(found) == [4, 4096] and min(found.values()) > 0
