"""A Run is sent as bytes, and one that cannot be sent says so."""

import torch

from manual_dp.audit.notes import Run, Update, pack, unpack


def test_a_run_comes_back_with_its_sketches():
    sketch = torch.rand(3, 16, dtype=torch.float64)
    run = Run(["a"], [(2,)], [Update(start=sketch, key=("a", 1))], [])
    back = unpack(pack(run))
    assert torch.equal(back.updates[0].start, sketch) and back.names == ["a"]
    assert back.updates[0].key == ("a", 1) and not back.unjudged


def test_what_cannot_be_sent_is_not_judged():
    run = Run(["a"], [(2,)], [Update(start=lambda: 0)], [])
    back = unpack(pack(run))
    assert back.updates == [] and "torch.func" in back.unjudged
