"""notebooks/programs: Lightning beside a loop by hand, and what it says of promises.

Importing lightning takes seconds in each process. So one file tests the three programs.
"""

import ast
import logging
import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from programs import beside_a_loop, promises  # notebooks/programs
from programs.beside_a_loop import judged, told, trainer
from programs.with_lightning import Net, digits, run
from torch.utils.data import DataLoader

from course.lab.hosts import on_hosts

PROGRAM = beside_a_loop.with_lightning.__file__
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with patch.dict(os.environ):  # Lightning writes into it
        yield


def start(hosts):
    """Start the shown program with torchrun; return what it printed and its errors."""
    run = hosts.type(f"torchrun --standalone --nproc-per-node 2 '{PROGRAM}' 2 24")
    return hosts.printed(run), hosts.printed(run, "err")


def test_torchrun_trains_what_the_loop_trains():
    # some seconds: only here has Lightning not started the ranks. It starts them in the
    # lesson, which a terminal does, too: its stored outputs say what comes of that
    said, errors = on_hosts(start)
    net, (X, y) = promises.by_hand(), digits()[1][::2]  # rank 0's half
    right = (net.net(X).argmax(1) == y).double().mean()
    assert said == f"30 steps, accuracy {right:.4f}\n", errors
    found = Net()
    found.load_state_dict(torch.load("weights.pt"))
    assert beside_a_loop.far(found, net) < 1e-12


def test_one_process_takes_twice_as_many_steps(capsys):
    run(1, 24)
    assert capsys.readouterr().out.startswith("60 steps, accuracy ")


def test_a_module_is_judged_by_its_weights_its_rates_and_its_return():
    class Silent(Net):
        def training_step(self, batch, index):
            pass

    class Unwritten(Net):
        def training_step(self, batch, index):
            raise NotImplementedError

    loader = DataLoader(digits()[0], 720)
    trained = Net()
    trainer(devices=1).fit(trained, loader)
    right, silent = judged(Net, trained, loader), judged(Silent, trained, loader)
    assert right == "       0 from the loop, rate 0.1000 to 0.1000"
    assert silent.endswith(": training_step returned None")
    assert float(silent.split()[0]) > 1e-3
    assert judged(Unwritten, trained, loader) == "not written yet"


def test_ranks_tell_once_how_far_apart_they_are():
    class Parts(Net):
        def on_train_epoch_end(self):
            with torch.no_grad():
                self.net[3].bias += self.global_rank

    boss = trainer([beside_a_loop.Report()])
    boss.fit(Parts(), DataLoader(digits()[0], 360))
    one, other = told()
    assert one["epochs"] == 1 and one["estimated_stepping_batches"] == 2
    assert one["apart"] == other["apart"] == pytest.approx(1)
    assert told() == []


def test_workers_draw_alike_on_all_ranks_until_the_seed_holds_the_rank():
    assert beside_a_loop.alike(24, workers=False) == ["24 of 24", "24 of 24"]
    assert beside_a_loop.alike(24, workers=True) == ["24 of 24", "0 of 24"]


def test_the_command_line_trains_with_the_file_and_passes_workers_itself():
    assert promises.command_line() < 1e-12
    assert promises.workers_of(1) == "PL_SEED_WORKERS=1"
    assert promises.workers_of({"workers": True}) == "ArgumentError"


def test_names_that_the_trainer_takes_and_refuses():
    names = promises.names()
    works = [name for name, found in names.items() if found == "works"]
    assert works == [
        "train_dataloader",
        "strategy=auto",
        "strategy=ddp_notebook",
        "devices=2",
        "devices=auto",
    ]
    assert names["L.trainer"].startswith("AttributeError")
    assert names["device=1"].startswith("TypeError")


def test_only_fit_works_with_the_lessons_two_classes():
    found = promises.verbs()
    assert found.pop("fit") == "works"
    assert {verb: said.partition(":")[0] for verb, said in found.items()} == {
        "validate": "MisconfigurationException",
        "test": "MisconfigurationException",
        "predict": "MisconfigurationException",
    }


@pytest.mark.parametrize(
    "devices, strategy, ids",
    [(1, "SingleDeviceStrategy", [0]), (2, "DDPStrategy", [0, 1])],
)
def test_what_the_trainer_has_chosen_can_be_printed(devices, strategy, ids):
    assert promises.chosen(devices) == ("CPUAccelerator", strategy, ids)


def test_rank_0_alone_logs_with_two_loggers():
    assert promises.logged() == (1, [0.0, 0.0])


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_a_cpu_takes_bfloat16_and_the_weights_stay(precision):
    assert promises.in_16_bits(precision) == ("bf16-mixed", torch.float32)


def test_the_simple_profiler_times_each_part_of_the_loop():
    parts = promises.profiled()
    steps = [count for name, count in parts.items() if name.endswith(".backward")]
    assert steps == [4]  # 1,438 digits in minibatches of 360


def lines_of_code(text):
    """Count lines that are neither blank nor a comment nor in a docstring."""
    rest = set(range(1, len(text.splitlines()) + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            first = node.body[0]
            if ast.get_docstring(node):
                rest -= {*range(first.lineno, first.end_lineno + 1)}
    kept = [line for i, line in enumerate(text.splitlines(), 1) if i in rest]
    return sum(not re.match(r"\s*(#|$)", line) for line in kept)


def test_lightnings_program_has_as_many_lines_as_the_page_says():
    programs = Path(promises.__file__).parent
    page = (programs.parent / "book/more.md").read_text()
    module, loop = (
        lines_of_code((programs / name).read_text())
        for name in ("with_lightning.py", "ddp_log.py")
    )
    shared = (programs / "train_ddp.py").read_text()
    evaluate = lines_of_code(re.search(r"@.*\ndef evaluate(.*\n)+?\n", shared)[0])
    said = re.search(r"has (\d+) lines.* has (\d+), and.*\s+imports has (\d+)", page)
    assert [module, loop, evaluate] == [int(number) for number in said.groups()]


def test_each_rank_gives_the_best_file_a_name_of_its_own():
    names, files = promises.names_of_the_best()
    assert len(set(names)) == 2 and files == [names[0]]


def test_ranks_would_lower_their_rates_after_different_epochs():
    one, other = promises.lowered(3, epochs=9)
    assert (one, other) == ([], [8])


def test_a_module_stays_in_eval_mode_and_an_error_is_found_before_the_first_step():
    assert promises.modes() == "ttvv works"
    assert promises.modes(Net.eval) == "TTvv works"
    assert promises.modes(broken=1, checks=2).startswith("vv ValueError")


def test_rank_0_prepares_and_every_rank_sets_up():
    assert promises.data_module() == ["prepare_data-0", "setup-0", "setup-1"]


def test_without_a_sampler_one_seed_gives_both_ranks_the_same_rows():
    assert promises.same_rows((1, 1), True) == (0, 30)
    assert promises.same_rows((1, 1), False) == (24, 60)


def test_sums_count_unequal_halves_and_sync_dist_does_not():
    mean, right, of = promises.tested()
    assert of == 359 and abs(mean - right / of) > 1e-3


def test_only_a_whole_checkpoint_goes_on():
    assert promises.go_on(True) < 1e-12
    assert promises.go_on(False) > 1e-3
    assert promises.go_on(True, lambda: Net().float(), precision="64-true") > 1e-10


@pytest.mark.parametrize("parts, steps", [(4, 15), (7, 9), (8, 8)])
def test_a_short_last_group_is_divided_by_the_full_number_of_parts(parts, steps):
    found, apart = promises.accumulated(parts)
    assert found == steps and apart < 1e-12
