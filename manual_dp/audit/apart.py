"""Parts of a model that are each rank's own by design: experts, tables, slices.

    own_parts   names of such parameters, and why; of a script's first step
    without     the runs without them: what ranks have in common is judged
    hooks       note that ranks send one another rows
    left_alone  names of what DDP was told to leave alone
    stages      words for ranks of which each has another model, as in a pipeline;
                layout: what is compared

They are not one model on many devices, which is what the audit is about. That ranks
begin with other weights there is no proof: a layer that nobody sent looks so, too.
"""

import zlib
from dataclasses import replace
from unittest import mock

import torch
import torch.distributed as dist

from manual_dp.audit.setup import prefix

# calls without a backward: the place of what they are given
GIVEN = {"all_gather": 1, "all_gather_into_tensor": 1, "all_reduce": 0}
TOLD = "each rank's own: DDP was told to leave them alone"
TRADED = "each rank's own: ranks send one another rows by all_to_all, as experts do"
SLICED = ("each rank's own: other weights, and the same gradients elsewhere, as where "
          "each has a slice of a layer (tensor parallelism)")


def hooks(watch):
    """Yield patches of what sends rows to all and gets theirs, whatever its name is."""
    for name in ("alltoall", "alltoall_base", "all_to_all_single"):
        if hasattr(dist.ProcessGroup, name):
            yield _heard(name, watch)
    for name in GIVEN:
        yield _hands_nothing_back(name, watch)


def _heard(name, watch):
    trade = getattr(dist.ProcessGroup, name)
    return mock.patch.object(dist.ProcessGroup, name, lambda *args, **kwargs: (
        setattr(watch.note, "traded", True) or trade(*args, **kwargs)))


def _hands_nothing_back(name, watch):
    real = getattr(dist, name)

    def call(*args, **kwargs):
        given = [*args[GIVEN[name]:][:1], kwargs.get("tensor"),
                 kwargs.get("input_tensor")]
        if torch.is_grad_enabled() and any(
                torch.is_tensor(one) and one.requires_grad for one in given):
            note = watch.note
            note.gathered |= name != "all_reduce"  # that may be of a loss, to print it
            if not watch.came and not note.updates:
                note.cut = f"dist.{name}"
        return real(*args, **kwargs)
    return mock.patch.object(dist, name, call)


def left_alone(models):
    """Return the names of the parameters that DDP was told to leave alone."""
    return [name for place, model in enumerate(models)
            for name in map(prefix(models, place).__add__,
                            getattr(model, "parameters_to_ignore", ()))]


def layout(run):
    """Return how many parameters a rank has, and a number for their shapes."""
    return [len(run.shapes), zlib.crc32(repr(run.shapes).encode())]


def stages(diaries):
    """Return words for ranks with other shapes than the first's, "" if all are alike.

    diaries: {rank: what it says}, with its `layout` as shapes.
    """
    told = {rank: here["shapes"] for rank, here in diaries.items() if "shapes" in here}
    first = min(told, default=0)
    for rank, mine in told.items():
        if mine != told[first]:
            return (f"rank {rank}'s model has other parameters than rank {first}'s "
                    f"({mine[0]} and {told[first][0]}): where each has a part, as in a "
                    "pipeline, nothing is judged; where all train one model, each "
                    "should make the same")
    return ""


def own_parts(runs):
    """Return (names, why) of what is each rank's own; no names, where all is common."""
    notes = [run.steps[0] for run in runs if run.steps]
    if len(notes) < max(len(runs), 2) or any(note.before is None for note in notes):
        return [], ""
    names = runs[0].names
    apart = [i for i, hashes in enumerate(zip(*(note.before for note in notes)))
             if len({*hashes}) > 1]
    alone = [i for i in apart if all(_own_gradient(note, i) for note in notes)]
    if told := [names[i] for i in alone if names[i] in runs[0].left_alone]:
        return told, TOLD
    if alone and all(note.traded for note in notes):
        return [names[i] for i in alone], TRADED
    if apart and (sliced := _sliced(notes, apart)):
        return [names[i] for i in sliced], SLICED
    return [], ""


def _own_gradient(note, i):
    """Return whether the rank applied what came back to it, if perhaps scaled."""
    if note.used is None or note.came is None:
        return True
    used, came = note.used[i], note.came[i]
    times = (used @ came) / (came @ came).clamp(min=1e-300)
    return bool((used - times * came).norm() <= note.close * used.norm())


def _sliced(notes, apart):
    """Return the places of slices, [] where the weights that differ are no slices.

    Ranks that see the same rows, with other weights, have other losses; unless they
    sum what each has of it. Then what all hold gets the same gradient on all. What is
    0 on all ranks, as biases are, may belong to a slice.
    """
    seen = [(note.all_rows, note.inputs) for note in notes]
    rows = [row for rows in notes[0].all_rows for row in rows or ()] + notes[0].inputs
    if not rows or any(one != seen[0] for one in seen) or not all(
            note.pieces for note in notes):
        return []
    came = torch.stack([note.came for note in notes])
    far = (came - came[0]).norm(dim=2).amax(0)
    size = came[0].norm(dim=1)
    same = far <= notes[0].close * size
    slices = ~same & ((notes[0].weights + notes[0].step).norm(dim=1) < 1e-9)
    slices[apart] = True
    shared = same & ~slices & (size > 0)
    return slices.nonzero().flatten().tolist() if shared.any() else []


def without(runs, names):
    """Return the runs without these parameters; what is left is in its old places."""
    places = [runs[0].names.index(name) for name in names]
    return [replace(run, steps=[_masked(note, places, names) for note in run.steps])
            for run in runs] if names else runs


def _masked(note, places, names):
    def blank(hashes):
        return hashes and [None if i in places else one for i, one in enumerate(hashes)]

    def zero(sketch):
        return sketch if sketch is None else sketch.index_fill(
            0, torch.tensor(places), 0)

    def keep(items):
        return {i: one for i, one in items.items() if i not in places}
    left = zero(note.left)
    return replace(
        note, before=blank(note.before), after=blank(note.after),
        stepped=keep(note.stepped), rates=keep(note.rates), used=zero(note.used),
        pieces=[*map(zero, note.pieces)], mine=zero(note.mine), step=zero(note.step),
        left=left if left is None or left.any() else None, weights=zero(note.weights),
        unreached=[i for i in note.unreached if i not in places],
        start=setup_without(note.start, names), setup=setup_without(note.setup, names))


def setup_without(setup, names):
    """Return the setup without the optimizers' state of these parameters."""
    return setup and replace(setup, left_out=[*setup.left_out, *names], state={
        (kind, name): one for (kind, name), one in setup.state.items()
        if name not in names})
