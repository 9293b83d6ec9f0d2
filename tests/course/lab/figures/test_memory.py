from xml.etree import ElementTree

import pytest
import torch

from course.lab.figures import memory
from manual_dp import get_params, init_params

SVG = "{http://www.w3.org/2000/svg}"


def words(picture):
    return [t.text for t in ElementTree.fromstring(picture.text).iter(SVG + "text")]


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_there_is_a_cell_for_each_place_in_memory(world_size):
    params = init_params("he", torch.Generator().manual_seed(0))
    replicas = {
        "p.to(device)": [[p.to("cpu") for p in params] for _ in range(world_size)],
        "get_params": [get_params(params, "cpu") for _ in range(world_size)]}
    picture = memory.draw({label: [replica[0].data_ptr() for replica in each]
                           for label, each in replicas.items()})
    assert words(picture).count("weights") == 1 + world_size


def test_the_same_picture_comes_of_other_addresses():
    assert memory.draw({"a": [11, 20, 11]}).text == memory.draw({"a": [7, 5, 7]}).text


def test_who_shares_with_whom_changes_the_picture():
    assert memory.draw({"a": [1, 1, 2]}).text != memory.draw({"a": [1, 2, 2]}).text


def test_the_number_of_places_is_written():
    assert "1 tensor in memory for 4 ranks" in words(memory.draw({"a": [3] * 4}))
    assert "2 tensors in memory for 3 ranks" in words(memory.draw({"a": [3, 4, 3]}))
    assert "1 tensor in memory for 1 rank" in words(memory.draw({"a": [3]}))
