import sys

from IPython.core.interactiveshell import InteractiveShell

from course.lab import ranges


def test_a_setting_that_leaves_its_range_is_named_after_its_cell_and_no_other(
    capsys, monkeypatch
):
    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    ranges.watch()
    ranges.watch()
    shell.run_cell(
        "world_size = 9  # 2 to 8, ranks\n"
        "depth = 2  # 2 to 8\n"
        "data = 'blobs'  # 'digits' or 'blobs'\n"
        "seed = 10  # no range\n"
        "lr = 0.3  # 0 to 1\n"
        "rows = 3  # 2, 4 or 8"
    )
    says = "is outside what its comment allows: the cells below may end in an error"
    assert capsys.readouterr().err.splitlines() == [
        f"world_size = 9 {says}",
        f"rows = 3 {says}",
    ]


def test_where_no_notebook_runs_nothing_is_watched(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython")
    ranges.watch()
    assert "IPython" not in sys.modules
