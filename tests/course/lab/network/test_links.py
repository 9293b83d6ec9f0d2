import pytest

from course.lab.network.links import LINKS, link


def test_every_link_says_where_its_numbers_are_from():
    assert all(one.name == name and one.source for name, one in LINKS.items())


@pytest.mark.parametrize("name, gigabytes", [
    ("pcie4", 31.5), ("nvlink4", 450), ("eth25", 3.125), ("eth100", 12.5),
    ("eth400", 50), ("ib400", 50)])
def test_bandwidths_are_those_of_one_direction(name, gigabytes):
    assert LINKS[name].bandwidth / 1e9 == pytest.approx(gigabytes, rel=0.001)


def test_a_link_can_be_given_as_numbers():
    assert link("12e9")[1:3] == (5e-6, 12e9)
    assert link("1e-6,3e9")[1:3] == (1e-6, 3e9)
    assert link("pcie4") is LINKS["pcie4"]


@pytest.mark.parametrize("text", ["usb", "", "1,2,3", "1e-6,", "a,1e9"])
def test_what_is_no_link_is_named(text):
    with pytest.raises(ValueError, match=f"link must be one of pcie4.*got '{text}'"):
        link(text)


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "-1e-6,1e9", "nan,1e9"])
def test_a_link_without_a_finite_bandwidth_is_refused(text):
    with pytest.raises(ValueError, match="a link needs alpha >= 0 seconds"):
        link(text)
