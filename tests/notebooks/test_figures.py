import base64
import io

import lessons as program  # notebooks/tools, which pyproject.toml puts on the path
import nbformat
import pytest
from figures import few_colours
from PIL import Image, ImageChops, ImageDraw, ImageStat


def figure():
    """Return a chart of sorts: text and slanted lines with soft edges, as PNG."""
    large = Image.new("RGBA", (1400, 600), "white")
    draw = ImageDraw.Draw(large)
    for i, colour in enumerate(["#3268a8", "#d9822b", "#3a9a6a"]):
        draw.line([(0, 150 * i), (1400, 600 - 100 * i)], fill=colour, width=8)
        draw.ellipse([300 * i, 200, 300 * i + 60, 260], fill=colour)
    small = large.resize((700, 300), Image.Resampling.LANCZOS)
    small.putpixel((0, 0), (255, 255, 255, 0))  # nothing there: the page shows through
    file = io.BytesIO()
    small.save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


def notebook(png):
    """Return a notebook whose cell displays the PNG, and a stream beside it."""
    outputs = [nbformat.v4.new_output("stream", text="1\n"),
               nbformat.v4.new_output("display_data", {
                   "image/png": png, "text/plain": "<Figure>"})]
    return nbformat.v4.new_notebook(cells=[
        nbformat.v4.new_markdown_cell("# title"),
        nbformat.v4.new_code_cell("show()", outputs=outputs)])


def opened(png):
    return Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")


@pytest.fixture
def stored():
    """A figure, and the notebook that displayed it, with few colours."""
    png = figure()
    nb = notebook(png)
    few_colours(nb)
    return png, nb


def test_a_figure_takes_less_than_half_of_the_bytes(stored):
    png, nb = stored
    assert len(nb.cells[1].outputs[1].data["image/png"]) < len(png) / 2


def test_a_figure_looks_as_before(stored):
    before, after = opened(stored[0]), opened(stored[1].cells[1].outputs[1].data[
        "image/png"])
    assert after.size == before.size
    assert after.getpixel((699, 150)) == (255, 255, 255)  # white stays white
    assert after.getpixel((0, 0)) == (255, 255, 255)
    apart = ImageStat.Stat(ImageChops.difference(before, after))
    assert max(apart.mean) < 0.5  # of 255; no more than 40 at the soft edge of a line
    assert max(high for _, high in apart.extrema) <= 40


def test_all_else_stays(stored):
    png, nb = stored
    nb.cells[1].outputs[1].data["image/png"] = png
    assert [{**cell, "id": ""} for cell in nb.cells] == [
        {**cell, "id": ""} for cell in notebook(png).cells]


def test_twice_is_the_same_as_once(stored):
    png = stored[1].cells[1].outputs[1].data["image/png"]
    few_colours(stored[1])
    assert stored[1].cells[1].outputs[1].data["image/png"] == png


def test_a_refresh_stores_figures_with_few_colours(tmp_path):
    path = tmp_path / "00_one.ipynb"
    nbformat.write(notebook(figure()), path)
    assert program.refresh(path, nbformat.read(path, 4))
    assert len(path.read_text()) < len(figure()) / 2 + 1000
    assert not program.refresh(path, notebook_again(path))


def notebook_again(path):
    """Return the stored notebook as a second run would: with the figure as drawn."""
    nb = nbformat.read(path, 4)
    nb.cells[1].outputs[1].data["image/png"] = figure()
    return nb
