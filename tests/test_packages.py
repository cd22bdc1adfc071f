"""The packages that this project was asked to stand on: each is imported by a module of its own that some test runs.

Read off the source. A module is run by a file that imports it and uses the name inside a function, or that does so with
a module which leads to it; vllm and mmpose live in environments of their own, so that what runs them is a check
that a script of docker/ calls there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HERE = ("diffusers", "transformers", "accelerate", "torch", "decord", "faiss", "datasets", "prefect")
ELSEWHERE = {"vllm": "check-vllm.sh", "mmpose": "check-mmpose.sh"}
"""Packages that pip cannot put beside the others, and the script of docker/ that runs them."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those for the type checker alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from statements(child)


@cache
def imported(path: Path) -> dict[str, str]:
    """Every name that a file's imports bind, with what it stands for, as a dotted name."""
    found = {}
    for node in statements(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules_that_import(package: str, root: Path = ROOT) -> list[Path]:
    """The project's own modules with an import of the package that is carried out."""
    files = (path for top in ("pipeline", "flows", "docker") for path in sorted((root / top).rglob("*.py")))
    return [path for path in files if package in {name.split(".")[0] for name in imported(path).values()}]


def dotted(path: Path, root: Path = ROOT) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@cache
def used_in_functions(path: Path) -> set[str]:
    """The names that a file's functions read, those of fixtures and helpers among them."""
    found, waiting = set(), [(node, False) for node in ast.iter_child_nodes(tree(path))]
    while waiting:
        node, inside = waiting.pop()
        if inside and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        waiting += [(child, inside) for child in ast.iter_child_nodes(node)]
    return found


def uses(runner: Path, module: str) -> bool:
    """Whether a file imports a module, or a name out of it, and a function of the file reads that name."""
    bound = {name for name, what in imported(runner).items() if what == module or what.rpartition(".")[0] == module}
    return bool(bound & used_in_functions(runner))


@cache
def texts(path: Path) -> set[str]:
    """The strings of a file."""
    return {
        node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def leads_to(path: Path, module: Path, root: Path) -> bool:
    """Whether a file uses a module, or holds its file's or its dotted name as text: what it is loaded or started by."""
    return bool({module.name, dotted(module, root)} & texts(path)) or uses(path, dotted(module, root))


def runs(runner: Path, module: Path, root: Path = ROOT) -> bool:
    """Whether a file runs a module: itself, or by way of a module of the same folder that leads to it."""
    if dotted(module.parent, root).rpartition(".")[2] not in runner.read_text("utf-8"):
        return False
    if uses(runner, dotted(module, root)):
        return True
    siblings = (path for path in sorted(module.parent.glob("*.py")) if path != module)
    return any(uses(runner, dotted(path, root)) and leads_to(path, module, root) for path in siblings)


@pytest.mark.parametrize("package", HERE)
def test_a_package_is_imported_by_a_module_that_a_test_runs(package):
    modules = modules_that_import(package)
    assert modules, f"no module of the project imports {package}"
    tests = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path != Path(__file__)]
    assert [module for module in modules if any(runs(test, module) for test in tests)], f"no test runs {modules}"


@pytest.mark.parametrize("package", ELSEWHERE)
def test_a_package_of_another_environment_is_imported_by_a_module_that_a_check_runs_there(package):
    modules = modules_that_import(package)
    assert [path for path in modules if "backends" in path.parts], f"no engine of the project imports {package}"
    script = ROOT / "docker" / ELSEWHERE[package]
    text = "\n".join(line for line in script.read_text("utf-8").splitlines() if not line.lstrip().startswith("#"))
    files = (path for top in ("docker", "tests") for path in sorted((ROOT / top).rglob("*.py")))
    called = [path for path in files if str(path.relative_to(ROOT)) in text]
    assert called, f"{script.name} runs no file of the project"
    assert any(runs(path, module) for path in called for module in modules), f"{called} run none of {modules}"
    assert f"docker/{script.name}" in (ROOT / "Makefile").read_text("utf-8"), f"no make target calls {script.name}"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("import wanted", True),
        ("def load():\n    from wanted.sub import Thing", True),
        ("try:\n    import wanted as other\nexcept ImportError: pass", True),
        ("# import wanted", False),
        ('TEXT = "import wanted"', False),
        ("import wanted_not", False),
        ("from own import wanted", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import wanted", False),
    ],
)
def test_only_an_import_that_is_carried_out_counts(tmp_path, text, counts):
    write(tmp_path, {"pipeline/one.py": text})
    assert bool(modules_that_import("wanted", tmp_path)) == counts


@pytest.mark.parametrize(
    ("test", "ran"),
    [
        ("from pipeline.own import Thing\ndef test():\n    Thing()", True),
        ("from pipeline import own\ndef test():\n    own.Thing()", True),
        ("from pipeline.own import Thing\n@fixture\ndef thing():\n    return Thing()", True),
        ("def test():\n    from pipeline.own import Thing\n    Thing()", True),
        ("from pipeline import outer\ndef test():\n    outer.run()", True),
        ("from pipeline.own import Thing\ndef test():\n    assert True", False),
        ("from pipeline.other import Thing\ndef test():\n    Thing()", False),
        ("# pipeline.own", False),
    ],
)
def test_a_module_is_run_by_who_uses_it_or_what_starts_it(tmp_path, test, ran):
    own = {"pipeline/own.py": "import wanted", "pipeline/other.py": "class Thing: pass"}
    write(tmp_path, {**own, "pipeline/outer.py": 'CHILD = "own.py"', "tests/test_own.py": test})
    assert runs(tmp_path / "tests/test_own.py", tmp_path / "pipeline/own.py", tmp_path) == ran
