"""Every exported name and every public member of an exported class is documented.

Documented means two things: a docstring in the code, and the name in a code span or code block of
``README.md`` or ``docs/``. Members that are not meant for users start with an underscore.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE_IN_PAGES = "\n".join(
    code
    for page in PAGES
    for code in re.findall(
        r"^```.*?^```|`[^`\n]+`", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
)
WORDS_IN_PAGES = set(re.findall(r"\w+", CODE_IN_PAGES))

MODULES = ("comporta", "comporta.testing", "comporta.stores", "comporta.fleet", "comporta.pipeline.sinks")


def exports(module: ModuleType) -> list[str]:
    """Return the names a module exports; every one of these modules has to declare them."""
    return list(getattr(module, "__all__", ()))


def exported_classes() -> dict[str, type]:
    """Return all exported classes by their qualified name."""
    modules = [importlib.import_module(name) for name in MODULES]
    members = [
        (f"{module.__name__}.{name}", getattr(module, name)) for module in modules for name in exports(module)
    ]
    return {name: member for name, member in members if inspect.isclass(member)}


def own_classes(cls: type) -> list[type]:
    """Return the class and those of its bases that comporta defines."""
    return [each for each in cls.__mro__ if each.__module__.partition(".")[0] == "comporta"]


def is_public(cls: type, name: str) -> bool:
    """Return whether a member is ours and meant for users. The name of a test is its documentation."""
    others = [base for base in cls.__mro__ if base not in own_classes(cls)]
    return not name.startswith(("_", "test_")) and not any(name in vars(base) for base in others)


def definition(cls: type) -> ast.ClassDef:
    """Return the syntax tree of a class."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return node


def assigned_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that an assignment sets: ``name`` in a class body, ``self.name`` in a method."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        for each in target.elts if isinstance(target, ast.Tuple) else [target]:
            yield each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "_")


def fields(tree: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the fields in the body of a class, each with the string below it."""
    for node, below in itertools.pairwise([*tree.body, ast.Pass()]):
        value = below.value if isinstance(below, ast.Expr) else None
        text = str(value.value) if isinstance(value, ast.Constant) else ""
        yield from ((name, text) for name in assigned_names(node))


def instance_attributes(tree: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that the constructor of a class sets on the instance."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for each in ast.walk(node):
                target = (
                    ast.unparse(each).partition(" ")[0]
                    if isinstance(each, ast.Assign | ast.AnnAssign)
                    else ""
                )
                if target.startswith(("self.", "(self.")):
                    yield from assigned_names(each)


def attributes(cls: type) -> dict[str, bool]:
    """Return the public attributes of a class and its instances, and whether the code describes each.

    A string below a field describes it, and so does a mention in the docstring of the class.
    """
    described: dict[str, bool] = {}
    for each in own_classes(cls):
        tree, words = definition(each), set(re.findall(r"\w+", each.__doc__ or ""))
        for name, text in fields(tree):
            described[name] = described.get(name, False) or bool(text) or name in words
        for name in instance_attributes(tree):
            described[name] = described.get(name, False) or name in words
    return {name: each for name, each in described.items() if is_public(cls, name)}


def methods(cls: type) -> dict[str, object]:
    """Return the public methods, properties and class methods that comporta defines."""
    members: dict[str, object] = {}
    for each in own_classes(cls):
        for name, member in vars(each).items():
            target = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if is_public(cls, name) and (inspect.isroutine(target) or isinstance(target, property)):
                members.setdefault(name, target)
    return members


def has_docstring(cls: type, name: str, member: object) -> bool:
    """Return whether a method, or a method that it overrides, has a docstring."""
    overridden = (vars(base).get(name) for base in own_classes(cls))
    return bool(member.__doc__) or any(each.__doc__ for each in overridden if each is not None)


CLASSES = exported_classes()


@pytest.mark.parametrize("module", MODULES)
def test_exports__each_name__appears_in_the_docs(module: str) -> None:
    names = exports(importlib.import_module(module))
    assert names, f"{module} declares no __all__"
    assert [name for name in names if name not in WORDS_IN_PAGES] == []


@pytest.mark.parametrize("module", MODULES)
def test_exports__each_name__has_a_docstring(module: str) -> None:
    loaded = importlib.import_module(module)
    documented = [getattr(loaded, name) for name in exports(loaded)]
    assert [each for each in documented if callable(each) and not each.__doc__] == []


@pytest.mark.parametrize("name", CLASSES)
def test_exported_class__each_public_method__has_a_docstring(name: str) -> None:
    cls = CLASSES[name]
    assert [each for each, member in methods(cls).items() if not has_docstring(cls, each, member)] == []


@pytest.mark.parametrize("name", CLASSES)
def test_exported_class__each_public_attribute__is_described_in_the_code(name: str) -> None:
    described = attributes(CLASSES[name])
    assert [each for each, is_described in described.items() if not is_described] == []


@pytest.mark.parametrize("name", CLASSES)
def test_exported_class__each_public_member__appears_in_the_docs(name: str) -> None:
    cls = CLASSES[name]
    members = {*methods(cls), *attributes(cls)}
    assert sorted(members - WORDS_IN_PAGES) == []
