import pytest

from course.lab.network.links import LINKS, Link
from course.lab.network.plan import Job, Machine, row, rows, table

FREE = Link("free", 0.0, 1e30, "")
JOB = Job(params=25e6, flops=1e9, rows=10)


def test_one_device_only_computes():
    one = row(JOB, Machine(1e12, LINKS["pcie4"]), 1)
    assert one.step == one.compute == 3 * 1e9 * 10 / 1e12
    assert (one.exposed, one.efficiency, one.cap, one.way) == (0, 1, None, None)
    assert one.memory == 25e6 * 4 * 3  # weights, gradients, momentum


def test_over_a_free_link_every_device_helps():
    for found in rows(JOB, Machine(1e12, FREE), [2, 7, 512]):
        assert found.efficiency == pytest.approx(1)
        assert found.memory == 25e6 * 4 * 4  # and the buckets


def test_what_backward_cannot_hide_is_waited_for():
    # 100 MB at 1 GB/s on two ranks: 100 ms; backward has 20 ms
    found = row(JOB, Machine(1e12, Link("", 0.0, 1e9, "")), 2)
    assert found.exposed == pytest.approx(0.1 - 0.02, rel=0.05)
    assert found.efficiency == pytest.approx(found.compute / found.step)


def test_a_minibatch_that_is_shared_gives_each_device_fewer_rows():
    job = JOB._replace(batch_size=10)
    found = row(job, Machine(1e12, FREE), 4)
    assert found.rows == 3  # 3, 3, 3 and 1
    assert found.efficiency == pytest.approx(10 / 12)


def test_a_million_rows_cost_what_the_devices_cost():
    found = row(JOB, Machine(1e12, FREE, price=3.6), 5)
    # 20,000 steps of 50 rows, 0.03 s each, on five devices of 0.001 a second
    assert found.cost == pytest.approx(20_000 * 0.03 * 5 * 0.001)


def test_two_levels_are_taken_where_they_are_faster():
    machine = Machine(1e12, LINKS["nvlink4"], LINKS["eth25"], 8)
    assert row(JOB, machine, 8).way == "ring"
    assert row(JOB, machine, 512).way == "two-level"


def test_a_slower_link_never_helps():
    steps = [row(JOB, Machine(1e12, LINKS[name]), 64).step
             for name in ("nvlink4", "pcie4", "eth100", "eth25")]
    assert steps == sorted(steps)


def test_the_fastest_way_inside_a_node_is_taken():
    machine = Machine(1e15, Link("", 1e-3, 1e12, ""), ways=("ring", "tree"))
    assert row(JOB, machine, 64).way == "tree"


@pytest.mark.parametrize("job, machine, world_size, message", [
    (JOB._replace(batch_size=3), Machine(1e12, FREE), 4, "minibatch of 3 rows leaves "
                                                         "some of 4"),
    (JOB, Machine(1e12, FREE, FREE, 8), 12, "12 devices do not fill nodes of 8")])
def test_what_cannot_be_is_named(job, machine, world_size, message):
    with pytest.raises(ValueError, match=message):
        row(job, machine, world_size)


def test_a_table_has_a_line_for_each_number_of_devices():
    lines = table(rows(JOB, Machine(1e12, LINKS["pcie4"]), [1, 8, 4096])).splitlines()
    assert [line.split()[0] for line in lines] == ["devices", "1", "8", "4,096"]
    assert lines[1].split()[2:5] == ["30", "0", "100.0%"]
