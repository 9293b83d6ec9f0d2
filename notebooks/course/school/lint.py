"""Refuse an answer that imports the course's solution or reaches into its check.

    refusal   why an answer cell is not graded, to be told to the learner, or None

It looks at the text alone and protects nothing: somebody who wants to get round it can.
But the notebook is there to be read by a person.
"""

import ast
import symtable

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
# refused as names, not as attributes: model.eval() is fine
NAMES = {"eval", "exec", "globals", "__builtins__", "__import__"}
ENDS = {"exit", "quit"}  # IPython's: the kernel ends after the cell that calls one
NO_WAY = "an answer needs no way into what runs it"


def refusal(source, first=""):
    """Return why an answer cell is not graded. first: the text of the set's first cell.

    Returns None for an answer that is graded, and for one that is not Python: Python's
    own error says so. It looks at the code under a magic such as %%time, too.
    """
    tree = _tree(source)
    given = list(filter(_is_import, ast.walk(_tree(first))))
    allowed = {  # the names of the course that the first cell imports
        alias.name
        for node in given
        for alias in node.names
        if _packages(node) & {*COURSE}
    }
    bound = {  # the names that an import gives to something
        alias.asname or alias.name.partition(".")[0]
        for node in [*given, *filter(_is_import, ast.walk(tree))]
        for alias in node.names
    }
    if _defines_check(tree):
        return "it defines check anew"
    ends = ENDS - _own_names(tree)
    for node in ast.walk(tree):
        why = (
            _bad_import(node, allowed)
            or _bad_name(node)
            or _ends_kernel(node, ends)
            or _patched(node, bound)
        )
        if why:
            return why
        for text in _run_by_a_magic(node):
            if why := refusal(text, first):
                return why
    return None


def _tree(source):
    """Parse a cell, magics too; return an empty module for what is not Python."""
    from IPython.core.inputtransformer2 import TransformerManager  # slow, on a rank

    text = TransformerManager().transform_cell(source)
    try:
        symtable.symtable(text, "answer", "exec")  # such as def f(a, a), which parses
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _is_import(node):
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _packages(node):
    """Return the packages that an import names."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    return {name.partition(".")[0] for name in names}


def _bad_import(node, allowed):
    """Say so if a tool, or more of the course than is allowed, is imported."""
    if not _is_import(node):
        return None
    names = {alias.name for alias in node.names}
    for name in sorted(_packages(node)):
        if name in TOOLS:
            return f"it imports {name}, and {NO_WAY}"
        if name in COURSE and not names <= allowed:
            return (
                f"it imports more of {name} than the first cell does, and an answer "
                "is your own"
            )
    taken = any(alias.asname == "check" for alias in node.names)
    return "it defines check anew" if taken else None


def _bad_name(node):
    """Say so if a name or an attribute leads to Python's insides."""
    name = getattr(node, "id", None)
    attribute = getattr(node, "attr", None)
    if name in NAMES or attribute in INSIDES:
        return f"it uses {name or attribute}, and {NO_WAY}"
    if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.modules":
        return f"it uses sys.modules, and {NO_WAY}"
    return None


def _ends_kernel(node, ends):
    """Say so if exit or quit is called, or named where it is not the answer's own."""
    called = getattr(getattr(node, "func", None), "id", None)
    name = called if called in ENDS else getattr(node, "id", None)
    if called in ENDS or name in ends:
        return f"it uses {name}, which ends the kernel: raise an error"
    return None


def _patched(node, bound):
    """Say so if an attribute of something imported is set: torch.allclose = ..."""
    function = getattr(getattr(node, "func", None), "id", None)
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        changed = node
    elif function in ("setattr", "delattr"):
        changed = node.args[0] if node.args else node
    else:
        return None
    root = changed
    while isinstance(root, ast.Attribute):
        root = root.value
    if getattr(root, "id", None) in bound:
        return f"it changes {ast.unparse(changed)}, and a module stays as it is"
    return None


def _scopes(tree):
    """Return the cell's scopes: first its own, then those of functions and classes."""
    scopes = [symtable.symtable(ast.unparse(tree), "answer", "exec")]
    for scope in scopes:
        scopes += scope.get_children()
    return scopes


def _own_names(tree):
    """Return the names that the cell gives to something: a value, a parameter."""
    return {
        symbol.get_name()
        for scope in _scopes(tree)
        for symbol in scope.get_symbols()
        if symbol.is_assigned() or symbol.is_parameter()
    }


def _defines_check(tree):
    """Say whether the cell's own `check` takes the place of the course's."""
    scopes = _scopes(tree)
    for scope in scopes:
        if "check" not in scope.get_identifiers():
            continue
        check = scope.lookup("check")
        # a function may have a local variable of this name
        outside = scope is scopes[0] or check.is_declared_global()
        if outside and check.is_assigned() and not check.is_imported():
            return True
    return False


def _run_by_a_magic(node):
    """Return the texts that a magic runs: IPython makes a call of the magic."""
    function = getattr(getattr(node, "func", None), "attr", None)
    if function not in ("run_cell_magic", "run_line_magic"):
        return []
    return [
        argument.value
        for argument in node.args[1:]
        if isinstance(argument, ast.Constant)
    ]
