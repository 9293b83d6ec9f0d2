"""What every lesson must look like in git, whatever it teaches.

Each lesson is held to each rule, and each rule is tried on a small lesson that keeps it
and on one that does not.
"""

import ast
import inspect
import json
import re
import textwrap

import pytest

import manual_dp
from tests.support.lessons import (
    FOLDER,
    LESSONS,
    SHARED,
    a_cell,
    a_figure_follows_the_numbers_that_it_draws,
    cells_on_ranks_are_clean,
    cells_were_run_once_in_order,
    code_cells,
    every_fold_is_closed_and_has_a_title,
    find,
    ids_are_words_and_differ,
    it_is_a_valid_notebook,
    it_starts_with_the_set_up,
    markdown_cells,
    nine_in_ten_outputs_are_compared,
    no_cell_leaves_python_or_ends_it,
    no_device_is_printed,
    no_place_of_a_machine_is_named,
    notebook,
    nothing_ends_in_an_error_or_on_stderr,
    only_the_kernel_is_kept_as_metadata,
    said,
    source,
    tags,
    tree,
    with_source,
    words,
)

# rules: size, text, code, the frame

def it_has_at_most_64_cells(nb):
    # a question, its run and the reason are three cells; a function to write is four
    return [] if len(nb["cells"]) <= 64 else [f"{len(nb['cells'])} cells"]


def code_is_at_most_15_lines_a_cell(nb):
    return [cell["id"] for cell in code_cells(nb)
            if len(source(cell).strip().splitlines()) > 15]


def text_is_at_most_120_words_a_cell(nb):
    return [f"{cell['id']}: {words(source(cell))}" for cell in markdown_cells(nb)
            if words(source(cell)) > 120]


def cells_keep_only_their_tags(nb):
    return [cell["id"] for cell in nb["cells"] if set(cell["metadata"]) - {"tags"}
            or cell.get("attachments")]


def parameters_come_second_and_are_literals(nb):
    cell = code_cells(nb)[1]
    if [c["id"] for c in code_cells(nb) if "parameters" in tags(c)] != [cell["id"]]:
        return ["the second code cell, and no other, is tagged parameters"]
    return [ast.unparse(node) for node in tree(cell).body if not is_literal(node)]


def is_literal(node):
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return False
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return False
    return len(node.targets) == 1


def body(function):
    """Return the statements of a function as text, without its docstring."""
    statements = function.body
    if ast.get_docstring(function):
        statements = statements[1:]
    return "\n".join(map(ast.unparse, statements))


def no_public_function_is_retyped(nb):
    ours = {}
    for name in manual_dp.__all__:
        text = textwrap.dedent(inspect.getsource(getattr(manual_dp, name)))
        ours[name] = body(ast.parse(text).body[0])
    return [f"{cell['id']}: {node.name}" for cell in code_cells(nb)
            for node in ast.walk(tree(cell)) if isinstance(node, ast.FunctionDef)
            and ours.get(node.name) == body(node)]


def it_says_what_you_will_do_learn_and_need(nb):
    # all that is said before the first section
    head = re.split("^## ", "\n\n".join(map(source, markdown_cells(nb))), flags=re.M)[0]
    frame = [r"\A# \d+\. \S", r"^\*You will do:?\*", r"^\*You will learn:?\*",
             r"^\*You need:?\*"]
    return [line for line in frame if not re.search(line, head, re.M)]


def it_ends_with_summary_questions_and_sources(nb):
    text = "\n\n".join(map(source, markdown_cells(nb)))
    summary = re.search(r"^## Summary\n(.*?)(?=^## )", text, re.M | re.S)
    questions = re.search(r"^## Questions\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    wrong = []
    if not summary or len(re.findall(r"^[-*] ", summary[1], re.M)) != 3:
        wrong.append("a summary of three bullets")
    if not questions or questions[1].count("<details>") != 3:
        wrong.append("three questions with their answers in <details>")
    if not re.search(r"^\*\*Sources", text, re.M):
        wrong.append("sources")
    return wrong


RULES = [
    *SHARED, it_has_at_most_64_cells, code_is_at_most_15_lines_a_cell,
    text_is_at_most_120_words_a_cell, cells_keep_only_their_tags,
    parameters_come_second_and_are_literals, no_public_function_is_retyped,
    it_says_what_you_will_do_learn_and_need, it_ends_with_summary_questions_and_sources,
]
NAMED = {"ids": [rule.__name__ for rule in RULES]}


def stored(lesson):
    return json.loads((FOLDER / f"{lesson}.ipynb").read_text(encoding="utf-8"))


def test_the_lessons_are_all_there():
    found = {path.stem for path in FOLDER.glob("[0-9][0-9]_*.ipynb")}
    assert sorted(found)[:len(LESSONS)] == LESSONS


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_at_most_200_kilobytes(lesson):
    assert (FOLDER / f"{lesson}.ipynb").stat().st_size <= 200_000


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_has_its_own_number(lesson):
    title = source(stored(lesson)["cells"][0]).splitlines()[0]
    assert title.startswith(f"# {int(lesson[:2])}. ")


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_links_only_to_what_there_is(lesson):
    text = "\n".join(map(source, markdown_cells(stored(lesson))))
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [link for link in links if not (FOLDER / link).exists()] == []


@pytest.mark.parametrize("rule", RULES, **NAMED)
@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_keeps_the_rule(lesson, rule):
    assert rule(stored(lesson)) == []


# the rules, tried

def drawn(kind="image/png"):
    return {"output_type": "display_data", "metadata": {},
            "data": {kind: "iVBORw0KGgo=", "text/plain": "<Figure>"}}


def small_lesson():
    """Return a lesson that keeps every rule."""
    folds = "\n\n".join(f"<details><summary>{i}. Why?</summary>\nSo.\n</details>"
                        for i in range(3))
    cells = [
        a_cell("markdown", "title", "# 7. Try\n\n*You will do:* a\n\n"
                                    "*You will learn:* b\n\n*You need:* c"),
        a_cell("code", "setup", "%matplotlib inline\nimport torch\n\n"
                                "_ = torch.manual_seed(0)"),
        a_cell("code", "parameters", "world_size = 4  # any\nnames = ['a', 'b']",
               tagged=["parameters"]),
        *(a_cell("code", f"run-{i}", f"print({i})", [said(f"{i}\n")])
          for i in range(9)),
        a_cell("code", "time", "print('fast')", [said("fast\n")],
               tagged=["nbval-ignore-output"]),
        a_cell("code", "figure", "print([1])\nplt.show()", [said("[1]\n"), drawn()]),
        a_cell("code", "start", "%load_ext manual_dp.ranks\n%ranks {world_size}",
               [said("4 ranks run.\n")]),
        a_cell("code", "push", "from manual_dp.ranks.live import current\n"
                               "current().push(X=names)"),
        a_cell("code", "ranks", "%%ranks 0 --timeout 3\nimport os\nx = torch.ones(rank)\n"
                                "if X:\n    os._exit(0)\nx", [said("rank 0: 1\n")]),
        a_cell("code", "own", "def allreduce(data):\n    data[0] = sum(data)"),
        a_cell("markdown", "summary", "## Summary\n\n- a\n- b\n- c"),
        a_cell("markdown", "questions", f"## Questions\n\n{folds}"),
        a_cell("markdown", "foot", "## On your own\n\nTry.\n\n**Sources.** d2l.ai"),
    ]
    return notebook(cells)


@pytest.mark.parametrize("rule", RULES, **NAMED)
def test_a_small_lesson_keeps_the_rule(rule):
    assert rule(small_lesson()) == []


def with_outputs(name, *outputs):
    def change(nb):
        find(nb, name)["outputs"] = list(outputs)
    return change


def with_key(name, key, value):
    def change(nb):
        find(nb, name)[key] = value
    return change


def twice_the_cells(nb):
    nb["cells"] += [a_cell("markdown", f"more-{i}", "more") for i in range(64)]


def an_untagged_first_and_a_tagged_third(nb):
    find(nb, "parameters")["metadata"] = {}
    find(nb, "run-0")["metadata"] = {"tags": ["parameters"]}


def another_timing(nb):
    find(nb, "run-0")["metadata"] = {"tags": ["nbval-skip"]}


def language_info(nb):
    nb["metadata"]["language_info"] = {"version": "3.11.7"}


def retyped():
    text = textwrap.dedent(inspect.getsource(manual_dp.sgd))
    return text.split('"""')[0] + text.split('"""')[2]


AN_ERROR = {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}
HTML = {"output_type": "display_data", "metadata": {},
        "data": {"text/html": "<a href='/home" "/alice/x'>", "text/plain": "x"}}
RESULT = {"output_type": "execute_result", "metadata": {}, "execution_count": 99,
          "data": {"text/plain": "0"}}
BROKEN = [
    (it_is_a_valid_notebook, with_key("setup", "outputs", [{"output_type": "new"}])),
    (it_has_at_most_64_cells, twice_the_cells),
    (code_is_at_most_15_lines_a_cell, with_source("run-0", "x = 1\n" * 16)),
    (text_is_at_most_120_words_a_cell, with_source("foot", "word " * 121)),
    (only_the_kernel_is_kept_as_metadata, language_info),
    (cells_keep_only_their_tags, with_key("run-0", "metadata", {"execution": {}})),
    (cells_keep_only_their_tags, with_key("foot", "attachments", {"a.png": {}})),
    (ids_are_words_and_differ, with_key("run-0", "id", "run-1")),
    (ids_are_words_and_differ, with_key("run-0", "id", "3f9c1a2b")),
    (ids_are_words_and_differ, with_key("run-0", "id", "deadbeef")),
    (ids_are_words_and_differ, with_key("run-0", "id", "Run_0")),
    (cells_were_run_once_in_order, with_key("run-0", "execution_count", None)),
    (cells_were_run_once_in_order, with_key("run-0", "execution_count", 7)),
    (cells_were_run_once_in_order, with_outputs("run-0", RESULT)),
    (nothing_ends_in_an_error_or_on_stderr, with_outputs("run-0", AN_ERROR)),
    (nothing_ends_in_an_error_or_on_stderr,
     with_outputs("run-0", {**said("warning"), "name": "stderr"})),
    (no_place_of_a_machine_is_named, with_outputs("run-0", said("/home" "/alice/x"))),
    (no_place_of_a_machine_is_named, with_outputs("run-0", HTML)),
    (no_place_of_a_machine_is_named, with_source("run-0", "open('/Users" "/bob/x')")),
    (no_place_of_a_machine_is_named, with_source("foot", "see /tmp" "/x")),
    (no_place_of_a_machine_is_named, with_source("foot", r"on C:" r"\data")),
    (no_device_is_printed, with_outputs("run-0", said("[device(type='cpu')]"))),
    (no_device_is_printed, with_outputs("run-0", said("on cuda:0"))),
    (no_device_is_printed, with_outputs("run-0", said("1\ncpu\n"))),
    (no_device_is_printed, with_outputs("run-0", said("NVIDIA H100"))),
    (nine_in_ten_outputs_are_compared, another_timing),
    (it_starts_with_the_set_up,
     with_source("setup", "x = 1\n%matplotlib inline\n_ = torch.manual_seed(0)")),
    (it_starts_with_the_set_up,
     with_source("setup", "%matplotlib inline\ntorch.manual_seed(0);")),
    (parameters_come_second_and_are_literals, an_untagged_first_and_a_tagged_third),
    (parameters_come_second_and_are_literals,
     with_source("parameters", "world_size = torch.cuda.device_count()")),
    (parameters_come_second_and_are_literals, with_source("parameters", "print(1)")),
    *((no_cell_leaves_python_or_ends_it, with_source("run-0", text)) for text in (
        "!ls", "%time f()", "x = 1\n  !ls", "exit()", "quit()", "exit", "sys.exit(0)",
        "import os\nos._exit(0)", "raise SystemExit", "get_ipython().system('ls')",
        "%%time\nx = 1", "x = 1\n%%ranks", "%%ranks\n!ls", "%%ranks\nget_ipython()")),
    *((cells_on_ranks_are_clean, with_source("ranks", f"%%ranks\n{text}")) for text in (
        "y = unknown", "import os", "x = = 1", "x = '" + "x" * 100 + "'")),
    (no_public_function_is_retyped, with_source("run-0", retyped())),
    (a_figure_follows_the_numbers_that_it_draws, with_outputs("figure", drawn())),
    (a_figure_follows_the_numbers_that_it_draws,
     with_outputs("figure", drawn(), said("[1]\n"))),
    (a_figure_follows_the_numbers_that_it_draws,
     with_outputs("figure", said("[1]\n"), drawn("image/jpeg"))),
    (it_says_what_you_will_do_learn_and_need, with_source("title", "# Try")),
    (it_says_what_you_will_do_learn_and_need, with_source("title", "# 7. Try\n\n## A")),
    (it_says_what_you_will_do_learn_and_need,
     with_source("title", "# 7. Try\n\n*You will do:* a\n\n*You need:* c")),
    (it_ends_with_summary_questions_and_sources,
     with_source("summary", "## Summary\n\n- a\n- b")),
    (it_ends_with_summary_questions_and_sources,
     with_source("questions", "## Questions\n\nWhy? So.")),
    (it_ends_with_summary_questions_and_sources, with_source("foot", "Done.")),
    (every_fold_is_closed_and_has_a_title,
     with_source("foot", "<details><summary>Why</summary>\nSo.")),
    (every_fold_is_closed_and_has_a_title,
     with_source("foot", "<details>So.</details>")),
]


@pytest.mark.parametrize("rule, change", BROKEN,
                         ids=[rule.__name__ for rule, _ in BROKEN])
def test_a_lesson_that_breaks_the_rule_is_seen(rule, change):
    nb = small_lesson()
    change(nb)
    assert rule(nb) != []


def test_every_rule_was_tried_on_a_lesson_that_breaks_it():
    assert {rule for rule, _ in BROKEN} == set(RULES)


def test_words_are_counted_as_a_reader_counts():
    text = textwrap.dedent("""\
        Two *words*, then code:
        ```python
        not counted at all
        ```
        | a | table |
        |---|---|
        <details><summary>One</summary></details>
        - [a link](https://d2l.ai/not/counted) and `x = 1`
        """)
    assert words(text) == 4 + 1 + 3 + 2
