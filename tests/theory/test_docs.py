"""docs/equations.md and the docstrings name the same formulas; every docstring example runs."""

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORMULA_ID = re.compile(r"(?<![\w.])[PQL]\d+\b")
MODULES = sorted(
    ".".join(path.relative_to(ROOT / "theory").with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "theory").rglob("*.py")
    if path != ROOT / "theory" / "__init__.py"
)


def docstring_ids(room):
    """Formula ids cited in any docstring of a room, with the file that cites them."""
    cited = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for formula in FORMULA_ID.findall(ast.get_docstring(node) or ""):
                    cited.setdefault(formula, path.relative_to(ROOT))
    return cited


def index_ids():
    rows = (ROOT / "docs" / "equations.md").read_text().splitlines()
    return [m.group(1) for row in rows if (m := re.match(r"\| ([PQL]\d+) \|", row))]


@pytest.mark.parametrize("room", ["theory", "sim"])
def test_every_cited_formula_is_in_the_index(room):
    missing = {
        key: str(path) for key, path in docstring_ids(room).items() if key not in index_ids()
    }
    assert not missing


def test_every_indexed_formula_is_cited_once_in_the_index_and_in_a_docstring():
    ids = index_ids()
    assert len(ids) == len(set(ids))
    assert set(ids) <= docstring_ids("theory").keys() | docstring_ids("sim").keys()


def test_functions_named_in_the_index_exist():
    for row in (ROOT / "docs" / "equations.md").read_text().splitlines():
        if not re.match(r"\| [PQL]\d+ \|", row):
            continue
        where = row.split("|")[-2]
        for path, names in re.findall(r"`theory/([\w/]+)\.py`(?:: ((?:`\w+`(?:, )?)+))?", where):
            module = importlib.import_module(
                f"theory.{path.replace('/', '.')}".removesuffix(".__init__")
            )
            assert all(hasattr(module, name) for name in re.findall(r"\w+", names)), row


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(f"theory.{name}"))
    assert result.failed == 0


@pytest.mark.parametrize("name", [m for m in MODULES if m != "__main__"])
def test_public_functions_have_an_example(name):
    tree = ast.parse(Path(importlib.import_module(f"theory.{name}").__file__).read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            text = ast.get_docstring(node) or ""
            assert ">>>" in text, node.name
            assert "Args:" in text, node.name
            assert "Returns:" in text, node.name
