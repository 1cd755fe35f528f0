"""Imports go one way: theory <- sim, theory <- llm, and nowhere in a circle."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {"theory": set(), "sim": {"theory"}, "llm": {"theory"}}
ROOMS = [room for room in ALLOWED if (ROOT / room).is_dir()]
LIBRARIES = {
    "theory": {"jax", "torch", "transformers", "vllm", "optuna"},
    "sim": {"torch", "transformers"},
    "llm": {"jax"},
}


def modules(room):
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / room).rglob("*.py"))
    }


def imports(path):
    """Every module named by an import statement, at any depth of the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_they_may(room):
    for name, path in modules(room).items():
        for imported in imports(path):
            top = imported.split(".")[0]
            assert top not in LIBRARIES.get(room, set()), f"{name} imports {imported}"
            if top in ALLOWED:
                assert top in {room} | ALLOWED[room], f"{name} imports {imported}"
            assert top not in {"tests", "benchmarks", "notebooks"}, f"{name} imports {imported}"


def test_no_import_cycle():
    known = {name: path for room in ROOMS for name, path in modules(room).items()}
    edges = {
        name: {other for other in imports(path) if other in known and other != name}
        for name, path in known.items()
    }
    done: set[str] = set()

    def visit(name, trail):
        assert name not in trail, " -> ".join([*trail, name])
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, [*trail, name])
            done.add(name)

    for name in sorted(edges):
        visit(name, [])
    assert len(done) > 10


def test_the_walk_sees_a_wrong_edge(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from sim import sweep\n    import torch.nn\n")
    assert set(imports(wrong)) == {"sim", "sim.sweep", "torch.nn"}
