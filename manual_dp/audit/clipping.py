"""Hear what clips gradients: how they were before it, and how it left them.

    Clips   of a `Watch`'s parameters; a part of its hooks
    clips   the rule about them: to one norm, as often, on all ranks

`clip_grad_norm_` and `clip_grad_value_` may be known to the script by names of its own,
so what both of them call is heard.
"""

import math
from unittest import mock

import torch
from torch.nn.utils import clip_grad

from manual_dp.audit.catalogue import finding
from manual_dp.audit.records import Clip, each_step

GROUPS, CLIPS = "_group_tensors_by_device_and_dtype", "_clip_grads_with_norm_"


class Clips:
    """Keep sketches of gradients, `before` and `after` they are clipped."""

    def __init__(self, watch):
        self.watch, self.before, self.after = watch, {}, {}

    def hooks(self):
        """Yield the hooks, none where this torch has other functions."""
        group, clip = getattr(clip_grad, GROUPS, None), getattr(clip_grad, CLIPS, None)
        if group and clip:
            yield mock.patch.object(clip_grad, GROUPS, lambda lists, *args: (
                self._begin(lists[0]) or group(lists, *args)))
            yield mock.patch.object(
                clip_grad, CLIPS, lambda params, most, norm, *args, **kwargs: (
                    self._clip(clip, params, most, norm, *args, **kwargs)))

    def _begin(self, grads):
        homes = {id(p.grad): i for i, p in enumerate(self.watch.params)
                 if p.grad is not None}
        for i in [homes[id(grad)] for grad in grads if id(grad) in homes]:
            row = self.watch.sketch.row(self.watch.params[i].grad)
            handed = self.after.pop(i, None)  # by the clip before
            again = handed is not None and not torch.equal(handed, row)
            self.watch.note.early |= again
            if again or i not in self.before:
                self.before[i] = row

    def _clip(self, real, params, most, norm, *args, **kwargs):
        params = [params] if torch.is_tensor(params) else list(params)
        real(params, most, norm, *args, **kwargs)
        index = self.watch.index
        mine = [(index[id(p)], p.grad) for p in params if id(p) in index]
        if mine:
            self.watch.note.clips.append(Clip(float(most), float(norm)))
        self.after.update({i: self.watch.sketch.row(grad)
                           for i, grad in mine if grad is not None})

    def undo(self, used, mine):
        """Put back in `used`, a sketch, what was clipped last; tell if it is not so.

        It is not where gradients were changed once more before the optimizer came.
        """
        early = False
        for i in self.before.keys() & mine:
            if i in self.after and not torch.equal(self.after[i], used[i]):
                early = True
            else:
                used[i] = self.before[i]
        return early


@each_step
def clips(notes, evidence):
    """Ask that every rank clips to one norm, the one of a single device."""
    t, first = notes[0].t, notes[0].clips
    known = {f.code for f in evidence.findings}
    if "clip" in known:
        return
    for rank, note in enumerate(notes):
        if len(note.clips) != len(first):
            yield finding("clip", len(note.clips), f"rank {rank} clips its gradients "
                          f"{len(note.clips)} times in the step, rank 0 {len(first)}",
                          rank)
            return
        for one, other in zip(note.clips, first):
            if one.most != other.most or not evidence.local and not _near(
                    one.norm, other.norm, evidence):
                # what is clipped once it is averaged has one norm
                mine = "replicas-differ" in known and one.most == other.most and not (
                    note.early or "not-synchronised" in known)
                yield finding("not-synchronised" if mine else "clip",
                              one.norm / other.norm, f"rank {rank} clips a "
                              f"norm of {one.norm:.4g} to {one.most:.4g}, rank 0 "
                              f"{other.norm:.4g} to {other.most:.4g}", rank)
                return
    alone = evidence.alone[t][0].clips if t is not None and t < len(
        evidence.alone) else first
    for one, other in zip(first, alone):
        if one.most != other.most:
            yield finding("clip", one.most / other.most, f"max_norm is {one.most:.4g} "
                          f"on {len(notes)} ranks, {other.most:.4g} on one")
            return


def _near(one, other, evidence):
    return math.isclose(one, other, rel_tol=10 * evidence.close)
