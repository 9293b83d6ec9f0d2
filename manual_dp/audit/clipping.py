"""Hear what clips gradients: how they were before it, and how it left them.

    Clips   of a `Watch`'s parameters; a part of its hooks

`clip_grad_norm_` and `clip_grad_value_` may be known to the script by names of its own,
so what both of them call is heard.
"""

from unittest import mock

import torch
from torch.nn.utils import clip_grad

from manual_dp.audit.records import Clip

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
