"""The article's programs as they are printed, and the one that repairs them."""

import ast
import hashlib
import io
import json
import os
import runpy
import sys
from contextlib import redirect_stdout
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

from course.lab.hosts import on_hosts
from manual_dp.audit import audit_script
from manual_dp.data import ensure_torchvision
from manual_dp.ranks import run_ranks
from tests.support.loaded import PROGRAMS, loaded

HARNESS, REPAIRED = PROGRAMS / "as_printed.py", PROGRAMS / "resnet_ddp.py"
EXAMPLES = [PROGRAMS / f"article/example_{i}.py" for i in (1, 2)]
LONG = 400  # seconds, for what takes ten


# as printed


def test_the_printed_programs_are_not_edited():
    sums = [hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in EXAMPLES]
    assert sums == ["724e5ce5955417c0", "187187be2c6eb831"]


def as_script(*words):
    """Run a program as `python` does: it is told nothing of ranks."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    sys.argv = [*map(str, words)]
    runpy.run_path(sys.argv[0], run_name="__main__")


def transformed(path):
    """Return what a program makes of a black pixel and a white one; did it draw none?"""
    from PIL import Image

    (printed,) = [
        node.value
        for node in ast.parse(path.read_text()).body
        if ast.unparse(node).startswith("transform = ")
    ]
    transform = eval(
        ast.unparse(printed), {"transforms": ensure_torchvision().transforms}
    )
    image = Image.new("RGB", (2, 1))
    image.putpixel((1, 0), (255, 255, 255))
    before = torch.get_rng_state()
    found = transform(image).tolist()
    return found, torch.equal(torch.get_rng_state(), before)


def start_all(hosts, out):
    """Start each program as a fork of this process; return what each one said."""
    ensure_torchvision()  # once: it takes seconds
    two_ranks = "torchrun --standalone --nproc-per-node 2"
    words = "--rows 48 --batch-size 16 --epochs 1 --looks 2"
    runs = {
        "example 1": hosts.run({}, as_script, HARNESS, EXAMPLES[0]),
        "example 2": hosts.type(f"{two_ranks} '{HARNESS}' '{EXAMPLES[1]}'"),
        "example 2 alone": hosts.run({}, as_script, HARNESS, EXAMPLES[1]),
        "repaired": hosts.type(f"{two_ranks} '{REPAIRED}' {words} --out '{out}'"),
    }
    return {"transforms": [transformed(path) for path in EXAMPLES]} | {
        name: (hosts.printed(run).splitlines(), hosts.printed(run, "err"), run.exitcode)
        for name, run in runs.items()
    }


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Start the programs side by side; return lines, errors, exit code of each, by name.

    Some seconds: only the programs themselves show what they read, take and print.
    """
    out = tmp_path_factory.mktemp("repaired") / "run"
    return on_hosts(start_all, out, timeout=LONG) | {"out": out}


def notes_and_lines(said):
    lines, errors, code = said
    assert code == 0, errors
    notes = [json.loads(line) for line in lines if line.startswith("{")]
    return sorted(notes, key=lambda note: note["rank"]), [
        line for line in lines if not line.startswith("{")
    ]


def test_example_2_on_two_ranks_prints_no_loss(said):
    notes, lines = notes_and_lines(said["example 2"])
    assert lines == ["Finished Training"]
    assert [note["rank"] for note in notes] == [0, 1]
    for note in notes:
        assert (note["updates"], note["rows"], note["rate"]) == (2 * 196, 128, 0.001)
        assert (note["downloads"], note["test set read"]) == (1, 0)


def test_example_1_loads_a_test_set_and_never_reads_it(said):
    [note], lines = notes_and_lines(said["example 1"])
    assert len(lines) == 3
    assert (note["downloads"], note["train set read"], note["test set read"]) == (
        2,
        2,
        0,
    )
    assert note["weights"] == 23_528_522
    assert "'pretrained' is deprecated" in note["warnings"][0]


def test_example_2_does_not_start_without_torchrun(said):
    _, errors, code = said["example 2 alone"]
    assert code == 1
    assert "environment variable MASTER_ADDR expected, but not set" in errors


def test_the_printed_transform_makes_numbers_from_minus_1_to_1_and_draws_none(said):
    assert said["transforms"] == [([[[-1.0, 1.0]]] * 3, True)] * 2


# repaired


def program():
    return loaded(REPAIRED)


def settings(*words, ranks=1):
    """Return the program and its options, as on one of so many ranks."""
    module = program()
    with (
        patch.dict(os.environ, WORLD_SIZE=str(ranks)),
        patch.object(sys, "argv", [REPAIRED.name, *map(str, words)]),
    ):
        return module, module.arguments()


def some(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randint(256, (rows, 3, 32, 32), generator=generator).byte(),
        torch.arange(rows) % 10,
    )


def test_it_starts_with_torchrun_and_rank_0_prints_a_line_for_each_look(said):
    lines, errors, code = said["repaired"]
    assert code == 0, errors
    text = said["out"].read_text()
    run = json.loads(text)
    assert lines == [str(look) for look in run["history"]]
    assert [look["images"] for look in run["history"]] == [32, 48]
    assert run["world_size"] == 2 and str(said["out"].parent) not in text


def test_it_is_audited_as_it_is_started(forked_audit):
    # some seconds: only the audit sees every rule of DDP kept in it
    report = audit_script(
        [REPAIRED, "--batch-size", "16", "--rows", "48"], 2, timeout=LONG
    )
    assert report.findings == [] and report.look_at == []


def test_ranks_together_take_the_minibatches_of_one():
    module, args = settings("--batch-size", 24)
    X, y = some(100)[0], torch.arange(100)  # a class tells which row it is

    def epoch(number, ranks):
        parts = [
            list(module.minibatches(args, X, y, number, rank, ranks))
            for rank in range(ranks)
        ]
        return [tuple(map(torch.cat, zip(*step))) for step in zip(*parts)]

    one = epoch(0, 1)
    for alone, together in zip(one, epoch(0, 3), strict=True):
        assert all(map(torch.equal, alone, together))
    rows, others = (torch.cat([y for _, y in steps]) for steps in (one, epoch(1, 1)))
    assert len(rows) == len(set(rows.tolist())) == 96 and not torch.equal(rows, others)


def test_a_crop_is_a_window_of_the_image_or_its_mirror():
    X, seen = some(40)[0], set()
    crops = program().crop_and_flip(X, torch.Generator().manual_seed(0))
    for image, crop in zip(F.pad(X, (4, 4, 4, 4)), crops, strict=True):
        places = {
            (down, right, flip)
            for down in range(9)
            for right in range(9)
            for flip in (False, True)
            if torch.equal(
                crop,
                (lambda window: window.flip(2) if flip else window)(
                    image[:, down : down + 32, right : right + 32]
                ),
            )
        }
        assert len(places) == 1
        seen |= places
    assert len(seen) > 20 and {flip for *_, flip in seen} == {False, True}


def run(words, sets, fixed=False, stop=None):
    """Train on this rank with these sets; return the history and the weights.

    fixed: batch norm with the means that it begins with. stop: raise in this epoch.
    """
    module, args = settings(*words, ranks=dist.get_world_size())
    make, minibatches, kept = module.resnet20, module.minibatches, {}

    def network():
        kept["net"] = net = make()
        if fixed:
            net.eval().train = lambda mode=True: net
        return net

    def until(args, X, y, epoch, *where):
        if epoch == stop:
            raise KeyboardInterrupt
        return minibatches(args, X, y, epoch, *where)

    module.join, module.digits = lambda: torch.device("cpu"), lambda: sets
    module.resnet20, module.minibatches = network, until
    with redirect_stdout(io.StringIO()) as out:
        try:
            module.train(args)
        except KeyboardInterrupt:
            assert stop is not None
    return (
        out.getvalue().replace("nan", "None"),
        {name: value.clone() for name, value in kept["net"].state_dict().items()},
    )


def losses(said):
    return [ast.literal_eval(line)["loss"] for line in said.splitlines()]


def test_any_number_of_ranks_takes_one_devices_steps_where_batch_norm_is_fixed():
    # some seconds: only whole runs can show that ranks take the same steps
    words = "--batch-size", 8, "--epochs", 3, "--lr", 0.001, "--plain"
    runs = {
        n: run_ranks(run, n, words, (some(8), some(6, 1)), True, timeout=LONG)
        for n in (1, 4)
    }
    one, four = (losses(runs[n][0][0]) for n in runs)
    assert one[0] > one[1] > one[2]
    assert four == pytest.approx(one, rel=1e-4)
    assert four[0] == pytest.approx(one[0], rel=1e-6)
    assert [said for said, _ in runs[4][1:]] == [""] * 3


def test_a_run_that_is_stopped_goes_on_from_its_checkpoint(tmp_path):
    # some seconds: only a stopped run beside a whole one shows that nothing is lost
    sets, whole, cut = (
        (some(16), some(6, 1)),
        tmp_path / "whole.pt",
        tmp_path / "cut.pt",
    )
    words = "--batch-size", 8, "--epochs", 2, "--checkpoint"
    once = run_ranks(run, 2, (*words, whole), sets, timeout=LONG)
    first = run_ranks(run, 2, (*words, cut), sets, False, 1, timeout=LONG)
    then = run_ranks(run, 2, (*words, cut), sets, timeout=LONG)
    assert len(losses(first[0][0])) == len(losses(then[0][0])) == 1
    assert losses(first[0][0]) + losses(then[0][0]) == losses(once[0][0])
    for (_, one), (_, two) in zip(once, then):
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.pt", "whole.pt"]


class Brightness(torch.nn.Module):
    """Let the class of an image be its first pixel, from 0 to 9."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(3, affine=False)
        self.register_buffer("classes", torch.arange(10.0))

    def forward(self, X):
        if self.training:
            self.norm(X)
        return -(X[:, 0, 0, :1] * 64 + 120 - self.classes).abs()


def accuracy(X, y):
    net = Brightness()
    net.norm.running_mean += dist.get_rank()  # each rank's own
    right = program().evaluate(net, X, y, torch.device("cpu"), False)
    return right, net.norm.running_mean.tolist(), net.training


@pytest.mark.parametrize("rows, ranks", [(1, 2), (503, 2)])
def test_each_row_of_the_test_counts_once_and_nothing_is_learned(rows, ranks):
    y = torch.arange(rows) % 7
    X = torch.where(torch.arange(rows) % 3 == 0, y, y + 1).byte()[:, None, None, None]
    found = run_ranks(accuracy, ranks, X.expand(-1, 3, 32, 32), y, timeout=LONG)
    assert found == [(len(range(0, rows, 3)) / rows, [0.0] * 3, True)] * ranks


def test_the_rate_rises_over_a_tenth_of_the_steps_and_falls_to_nothing():
    module, args = settings("--lr", 0.4)
    rate = [module.learning_rate(args, step, 100) for step in range(100)]
    assert rate[:10] == pytest.approx([0.04 * step for step in range(1, 11)])
    assert rate[10] == 0.4 and rate[55] == pytest.approx(0.2) and 0 < rate[99] < 0.001
    assert rate[10:] == sorted(rate[10:], reverse=True)


def test_cifar10s_binary_files_are_read(tmp_path):
    pixels, classes = some(6)
    rows = torch.cat([classes[:, None].byte(), pixels.flatten(1)], 1).numpy()
    for name, row in zip(
        [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"], rows
    ):
        row.tofile(tmp_path / f"{name}.bin")
    (X, y), (X_test, y_test) = program().cifar10(tmp_path)
    assert torch.equal(X, pixels[:5]) and torch.equal(y, classes[:5])
    assert torch.equal(X_test, pixels[5:]) and torch.equal(y_test, classes[5:])


def test_its_network_has_20_layers_and_the_papers_weights():
    layers = [p.numel() for p in program().resnet20().parameters() if p.dim() > 1]
    widths = [16] * 7 + [32] * 6 + [64] * 6
    assert layers == [9 * a * b for a, b in zip([3, *widths], widths)] + [640]


def test_a_minibatch_that_cannot_be_dealt_out_equally_is_refused(capsys):
    with pytest.raises(SystemExit):
        settings("--batch-size", 128, ranks=3)
    assert "--batch-size 128 is not divisible by the ranks" in capsys.readouterr().err


def test_two_ranks_that_have_one_gpu_say_that_they_use_the_cpu(capsys):
    with (
        patch.dict(os.environ, LOCAL_RANK="0", LOCAL_WORLD_SIZE="2"),
        patch.object(torch.cuda, "device_count", lambda: 1),
        patch.object(dist, "init_process_group") as begun,
    ):
        assert program().join() == torch.device("cpu")
    assert begun.call_args.args == ("gloo",)
    assert capsys.readouterr().err == "2 ranks, 1 GPU: all are on the CPU\n"


def test_the_repaired_program_needs_nothing_of_ours():
    text = REPAIRED.read_text()
    assert "manual_dp" not in text
