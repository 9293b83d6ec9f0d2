"""Parameters on one memory: of one rank, and of several."""

import copy
import tempfile
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from manual_dp.audit import audit, memory
from manual_dp.audit.memory import common
from manual_dp.ranks import run_ranks
from tests.support.broken_training import net, ordinary, rows, sgd
from tests.support.scripted import batches, report_on, train


def own():
    return net()


def shared_by_itself():
    return net().share_memory()


def loaded_by_each():
    """Map one file in each rank, which writes to copies of its pages."""
    names = [tempfile.mktemp() if not dist.get_rank() else None]  # noqa: S306
    dist.broadcast_object_list(names)
    if not dist.get_rank():
        torch.save(net().state_dict(), names[0])
    dist.barrier()
    model = net()
    model.load_state_dict(torch.load(names[0], mmap=True), assign=True)
    return model


def in_one_file():
    model = net()
    names = [tempfile.mktemp() if not dist.get_rank() else None]  # noqa: S306
    dist.broadcast_object_list(names)
    weight = model[2].weight
    one = torch.from_file(names[0], shared=True, size=weight.numel()).view_as(weight)
    dist.barrier()
    model[2].weight = nn.Parameter(one)
    return model


def a_table_in_one_file():
    model = in_one_file()
    model[2].weight.requires_grad_(False)
    return model


@pytest.mark.parametrize("make, names", [
    (a_table_in_one_file, []),
    (own, []), (shared_by_itself, []), (loaded_by_each, []),
    (in_one_file, ["2.weight"])])
def test_memory_that_ranks_share_is_found_by_name(make, names):
    def rank():
        model = make()
        return common(dict(model.named_parameters()))
    first, second = run_ranks(rank, 2)
    assert [name for name in first if first[name] == second.get(name)] == names


def test_a_place_within_one_mapping_is_its_own():
    whole = torch.zeros(2, 6, requires_grad=True).share_memory_()
    places = common({"first": whole[0], "second": whole[1], "again": whole[0]})
    assert places["first"] == places["again"] != places["second"]
    assert common({"own": nn.Parameter(torch.zeros(3)),
                   "none": nn.Parameter(torch.zeros(0))}) == {}


def test_what_all_may_read_and_nobody_writes_is_no_shared_memory(tmp_path):
    (tmp_path / "maps").write_text(
        "7f00-7fff rw-p 00000000 08:01 12 /weights\n7fff-8fff r--s 00000000 08:01 12 /w\n"
        "8fff-9fff rw-s 00000000 00:01 0 \n")
    with mock.patch.object(memory, "MAPS", tmp_path / "maps"):
        assert memory._shared_mappings() == []
    p = nn.Parameter(torch.zeros(3))
    ends_before = f"{p.data_ptr() - 4096:x}-{p.data_ptr():x} rw-s 0 00:01 12 /weights"
    (tmp_path / "maps").write_text(ends_before)
    with mock.patch.object(memory, "MAPS", tmp_path / "maps"):
        assert common({"w": p}) == {}
    with mock.patch.object(memory, "MAPS", tmp_path / "nowhere"):
        assert common({"w": nn.Parameter(torch.zeros(3))}) == {}


def test_a_model_that_was_handed_to_processes_is_one_memory():
    """mp.spawn moves what it hands over to memory that all of its processes map."""
    model = net()
    for p in model.parameters():
        torch.multiprocessing.reductions.reduce_storage(p.data.untyped_storage())
    assert common(dict(model.named_parameters())).keys() == dict(
        model.named_parameters()).keys()
    assert common(dict(copy.deepcopy(model).named_parameters())) == {}


@pytest.mark.parametrize("make, codes", [
    (in_one_file, ["alias"]), (shared_by_itself, [])])
def test_a_script_whose_ranks_train_one_memory_is_told_so(make, codes):
    def script():
        model, optimizer = sgd(make())
        yield model, optimizer
        train(nn.parallel.DistributedDataParallel(model), optimizer, batches())
    found, said, _ = report_on(script)[0]
    assert found[:1] == codes, said
    assert "steps for all" not in said
    assert ("2.weight of rank 1 is on the memory of rank 0's" in said) == bool(codes)


def test_an_audit_names_it_too():
    found = audit(lambda: sgd(nn.parallel.DistributedDataParallel(in_one_file())),
                  rows(8), ordinary, 2).findings
    assert [f.code for f in found][:1] == ["alias"]
