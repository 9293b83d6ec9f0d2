"""notebooks/programs/eight_mistakes.py: only a mistake of it has a finding."""

import pytest
from programs import eight_mistakes  # notebooks/programs


def codes(mistake, world_size):
    return [
        [finding.code for finding in report.findings]
        for report in eight_mistakes.reports(mistake, world_size)
    ]


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_training_without_a_mistake_has_no_finding(world_size):
    assert codes("", world_size) == [[], []]
    assert codes("module", world_size) == [["not-synchronised"]] * 2
