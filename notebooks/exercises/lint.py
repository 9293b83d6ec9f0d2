"""What an answer may not do: be the course's own, or reach for what checks it.

    refusal   why an answer cell is not graded, in the learner's words, or None

It looks at the text alone and is no wall: somebody who wants to get round it can, in a
notebook that a person reads.
"""

import ast
import symtable

from IPython.core.inputtransformer2 import TransformerManager

COURSE = ("manual_dp", "course")
TOOLS = ("importlib", "ctypes", "gc", "inspect", "builtins")
INSIDES = {
    "__builtins__",
    "__closure__",
    "__code__",
    "__globals__",
    "__import__",
    "__subclasses__",
    "_getframe",
    "_current_frames",
    "f_back",
    "f_builtins",
    "f_globals",
    "f_locals",
    "gi_frame",
    "tb_frame",
    "user_ns",
}
NAMES = {
    "eval",
    "exec",
    "globals",
    "__builtins__",
    "__import__",
}  # model.eval() is fine
NO_WAY = "an answer needs no way into what runs it"


def refusal(source, first=""):
    """Return why an answer cell is not graded. first: the text of the set's first cell.

    None for an answer that is graded, and for one that is not Python, since Python
    says so itself. What a magic such as %%time runs is looked at, too.
    """
    given = [node for node in ast.walk(_tree(first)) if _imported(node)]
    ours = {
        alias.name
        for node in given
        for alias in node.names
        if _from(node) & {*COURSE}
    }
    tree = _tree(source)
    imports = [*given, *filter(_imported, ast.walk(tree))]
    bound = {
        alias.asname or alias.name.partition(".")[0]
        for node in imports
        for alias in node.names
    }
    whys = [_check_defined(tree)]
    for node in ast.walk(tree):
        whys += [
            _imports(node, ours),
            _inside(node),
            _patched(node, bound),
            *(refusal(text, first) for text in _run_by_a_magic(node)),
        ]
    return next(filter(None, whys), None)


def _tree(source):
    try:
        return ast.parse(TransformerManager().transform_cell(source))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _imported(node):
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _from(node):
    """Return the packages that an import names."""
    names = (
        [node.module or ""]
        if isinstance(node, ast.ImportFrom)
        else [alias.name for alias in node.names]
    )
    return {name.partition(".")[0] for name in names}


def _imports(node, ours):
    if not _imported(node):
        return None
    for name in sorted(_from(node)):
        if name in TOOLS:
            return f"it imports {name}, and {NO_WAY}"
        if (
            name in COURSE
            and not {alias.name for alias in node.names} <= ours
        ):
            return (
                f"it imports more of {name} than the first cell does, and an answer "
                "is your own"
            )
    taken = any(alias.asname == "check" for alias in node.names)
    return "it defines check anew" if taken else None


def _inside(node):
    name = getattr(node, "id", None)
    attribute = getattr(node, "attr", None)
    if name in NAMES or attribute in INSIDES:
        return f"it uses {name or attribute}, and {NO_WAY}"
    if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.modules":
        return f"it uses sys.modules, and {NO_WAY}"
    return None


def _patched(node, bound):
    """Say so if an attribute of something imported is set: torch.allclose = ..."""
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        changed = node
    elif getattr(getattr(node, "func", None), "id", None) in (
        "setattr",
        "delattr",
    ):
        changed = node.args[0] if node.args else node
    else:
        return None
    root = changed
    while isinstance(root, ast.Attribute):
        root = root.value
    return (
        f"it changes {ast.unparse(changed)}, and a module stays as it is"
        if getattr(root, "id", None) in bound
        else None
    )


def _check_defined(tree):
    """Say so if the cell's own `check` takes the place of the course's."""
    table = symtable.symtable(ast.unparse(tree), "answer", "exec")
    tables = [table]
    while tables:
        one = tables.pop()
        tables += one.get_children()
        symbol = (
            one.lookup("check") if "check" in one.get_identifiers() else None
        )
        if (
            symbol
            and symbol.is_assigned()
            and not symbol.is_imported()
            and (one is table or symbol.is_declared_global())
        ):
            return "it defines check anew"
    return None


def _run_by_a_magic(node):
    if getattr(getattr(node, "func", None), "attr", None) in (
        "run_cell_magic",
        "run_line_magic",
    ):
        yield from (
            argument.value
            for argument in node.args[1:]
            if isinstance(argument, ast.Constant)
        )
