"""Hear what clips gradients: how they were before it, and how it left them."""

from functools import partial
from unittest import mock

import torch
from torch.nn.utils import clip_grad


class Clips:
    """Keep sketches of a Recorder's gradients, `before` and `after` they are clipped."""

    def __init__(self, recorder):
        self.recorder, self.before, self.after = recorder, {}, {}

    def hooks(self):
        """Yield the patch of what clip_grad_norm_ calls; none in another torch."""
        real = getattr(clip_grad, "_clip_grads_with_norm_", None)
        if real:
            yield mock.patch.object(clip_grad, "_clip_grads_with_norm_",
                                    partial(self._clip, real))

    def _clip(self, real, params, most, norm, *args, **kwargs):
        params = [params] if torch.is_tensor(params) else list(params)
        self._note(params, most, norm)
        real(params, most, norm, *args, **kwargs)
        if not self.recorder.problem:
            self.after.update(self._rows(params))

    def _note(self, params, most, norm):
        recorder, rows = self.recorder, {}
        try:
            rows = {} if recorder.problem else self._rows(params)
            if rows:
                recorder.now.clips.append((float(most), float(norm)))
        except Exception as error:  # noqa: BLE001 (it is ours, and not the script's)
            recorder.problem = f"the audit met {type(error).__name__}: {error}"
        for i, row in rows.items():
            handed = self.after.get(i)
            recorder.now.early |= handed is not None and not torch.equal(row, handed)
            self.before.setdefault(i, row)

    def _rows(self, params):
        index, sketch = self.recorder.index, self.recorder.sketch
        return {index[id(p)]: sketch.row(p.grad) for p in params
                if id(p) in index and p.grad is not None}

    def undo(self, used, mine):
        """Put back in `used`, a sketch, what was clipped; tell if it changed since."""
        early = False
        for i in self.before.keys() & mine:
            if torch.equal(self.after[i], used[i]):
                used[i] = self.before[i]
            else:
                early = True
        return early
