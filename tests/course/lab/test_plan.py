import pytest

from course.__main__ import main

ASKED = ["plan", "--params", "25e6", "--flops", "4e9", "--link", "pcie4"]


def refuses(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert caught.value.code == 2 and out == "" and "Traceback" not in err
    return err.splitlines()[-1]


@pytest.mark.parametrize("more, message", [
    (["--params", "0"], "--params: '0' is no number above 0"),
    (["--params", "many"], "--params: 'many' is no number above 0"),
    (["--flops", "nan"], "--flops: 'nan' is no number above 0"),
    (["--flops", "inf"], "--flops: 'inf' is no number above 0"),
    (["--speed", "-1"], "--speed: '-1' is no number above 0"),
    (["--link", "usb"], "--link: link must be one of pcie4, nvlink4"),
    (["--link", "-5"], "--link: "),
    (["--between", "usb"], "--between: link must be one of"),
    (["--between", "eth25"], "say --per-node, too"),
    (["--world-size", "0"], "--world-size: '0' is no whole number"),
    (["--world-size", "2", "x"], "--world-size: 'x' is no whole number"),
    (["--per-node", "8", "--world-size", "12"], "12 devices do not fill nodes of 8"),
    (["--batch-size", "4", "--world-size", "8"], "leaves some of 8 devices without"),
    (["--rows", "0"], "--rows: '0' is no whole number"),
    (["--itemsize", "3"], "--itemsize: invalid choice: 3"),
    (["--way", "bus"], "--way: invalid choice: 'bus'"),
    (["--out", "no/such/folder/x.svg"], "is no file in an existing folder"),
    (["--out", "plan.png"], "must end in .svg, got plan.png"),
])
def test_a_wrong_value_is_one_line(capsys, more, message):
    line = refuses(capsys, *ASKED, *more)
    assert line.startswith("python -m course") and ": error: " in line
    assert message in line


@pytest.mark.parametrize("missing", ["--params", "--flops", "--link"])
def test_what_is_missing_is_named(capsys, missing):
    i = ASKED.index(missing)
    assert missing in refuses(capsys, *ASKED[:i], *ASKED[i + 2:])


def test_the_plan_is_printed_and_drawn(capsys, tmp_path):
    out = tmp_path / "plan.svg"
    assert main([*ASKED, "--world-size", "512", "1", "8", "8", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["devices", "1", "8", "512"]
    assert out.read_text().startswith("<?xml") or "<svg" in out.read_text()


def test_a_million_devices_are_planned_at_once(capsys):
    assert main([*ASKED, "--between", "eth400", "--per-node", "8",
                 "--world-size", "1000000"]) == 0
    assert "1,000,000" in capsys.readouterr().out


def test_the_fastest_of_the_ways_is_named(capsys):
    main([*ASKED, "--way", "star", "halving-doubling", "--world-size", "64"])
    assert capsys.readouterr().out.splitlines()[-1].endswith("halving-doubling")


def test_help_is_printed(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["plan", "--help"])
    assert caught.value.code == 0 and "before paying" in capsys.readouterr().out
