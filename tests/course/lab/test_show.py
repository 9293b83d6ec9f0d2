import inspect

import manual_dp
from course.lab.show import Source, show


def test_shows_the_function_as_the_file_has_it():
    shown = repr(show(manual_dp.allreduce))
    assert shown == inspect.getsource(manual_dp.allreduce).rstrip()
    assert shown.startswith("@torch.no_grad()\ndef allreduce(tensors):")


def test_every_public_function_can_be_shown():
    for name in manual_dp.__all__:
        assert f"def {name}(" in repr(show(getattr(manual_dp, name)))


def test_a_notebook_gets_it_as_code_with_colours():
    assert Source("x = 1")._repr_markdown_() == "```python\nx = 1\n```"
