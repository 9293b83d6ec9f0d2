"""A script takes its steps once more in silence, on ranks that find what torchrun gives."""

import json

import pytest

from manual_dp.audit.again import take_again

SCRIPT = """
import json, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

assert __name__ == "__main__"
import beside  # from the script's own folder
how, path = sys.argv[1:]
dist.init_process_group("gloo")
print("not to be seen"), print("nor this", file=sys.stderr)
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR TORCHELASTIC_RUN_ID"
told = {name: os.environ[name] for name in names.split()}
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = DDP(model) if how not in ("bare", "other") else model
if how == "other":
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
for t in range({"short": 2, "steps": 10 ** 9}.get(how, 4)):
    if how == "raises" and dist.get_rank() == dist.get_world_size() - 1 and t:
        raise ValueError("on the last rank")
    if how == "hangs" and t:
        time.sleep(1000)
    if how == "exits" and t:
        sys.exit(3)
    optimizer.zero_grad()
    model(torch.ones(2, 3, dtype=torch.float32)).sum().backward()
    optimizer.step()
    with open(f"{path}/{dist.get_rank()}-{t}", "w") as file:
        json.dump(told, file)
dist.destroy_process_group()
"""


@pytest.fixture
def again(tmp_path):
    """Return a function that takes the steps, and the files that ranks leave."""
    (tmp_path / "beside.py").touch()
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "left").mkdir()

    def take(how, world_size=2, timeout=60):
        words = [str(tmp_path / "train.py"), how, str(tmp_path / "left")]
        runs = take_again(words, 3, timeout, world_size, 1)
        return runs, {path.name: json.loads(path.read_text())
                      for path in (tmp_path / "left").iterdir()}
    return take


def test_a_script_ends_with_its_last_step_and_says_nothing(again, capfd):
    runs, left = again("steps")
    assert [len(run.steps) for run in runs] == [3, 3]
    assert {note.close for run in runs for note in run.steps} == {1e-7}
    assert left.keys() == {f"{rank}-{t}" for rank in range(2) for t in range(3)}
    assert capfd.readouterr() == ("", "")


def test_ranks_find_what_torchrun_gives(again):
    told = again("steps")[1]["1-0"]
    assert told == {
        "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "again"}


@pytest.mark.parametrize("how, steps", [("short", 2), ("exits", 1)])
def test_what_was_taken_of_a_shorter_script_is_kept(again, how, steps):
    runs, _ = again(how)
    assert [len(run.steps) for run in runs] == [steps, steps]


@pytest.mark.parametrize("how, timeout", [
    ("raises", 60), ("hangs", 8), ("other", 60)])
def test_there_is_nothing_where_it_does_not_come_to_its_end(again, how, timeout):
    assert again(how, timeout=timeout)[0] is None


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_model_is_watched_that_nobody_wrapped(again, world_size):
    runs, _ = again("bare", world_size)
    # without an average of gradients, one of weights may follow
    assert [len(run.steps) for run in runs] == [3 if world_size == 1 else 4] * world_size
    assert runs[0].names == ["weight", "bias"]
