"""The shape of the code: layers import downward, modules stay small, start-up stays free of torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "firstchair"

RANK = {
    "core": 0,
    "chat": 1,
    "traces": 2,
    "catalog": 2,
    "engines": 3,
    "tools": 3,
    "sandbox": 3,
    "rollout": 4,
    "rewards": 4,
    "evals": 5,
    "train": 5,
    "data": 5,
    "gateway": 6,
    "serve": 6,
    "cli": 7,
    "ui": 7,
}
"""A layer may import from its own row and from rows below."""

TORCH_FREE = {"core", "traces", "catalog", "data", "evals", "cli", "serve"}
MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 80
MAX_PARAMETERS = 8

MODULES = sorted(path for path in SRC.rglob("*.py") if path.parent != SRC and "testing" not in path.parts)


def imports_of(tree: ast.AST) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.lineno, node.module))
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_a_module_imports_downward_only(path: Path):
    layer = path.relative_to(SRC).parts[0]
    wrong = [
        f"{path}:{line} imports {name}"
        for line, name in imports_of(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith("firstchair.") and RANK.get(name.split(".")[1], 0) > RANK[layer]
    ]
    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_a_module_and_its_functions_stay_small(path: Path):
    text = path.read_text(encoding="utf-8")
    found = [f"{text.count(chr(10))} lines"] if text.count("\n") > MAX_MODULE_LINES else []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        parameters = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
        command = "cli" in path.parts  # a command's parameters are its flags
        if lines > MAX_FUNCTION_LINES:
            found.append(f"{node.name}: {lines} lines")
        if parameters > MAX_PARAMETERS + 1 and not command:
            found.append(f"{node.name}: {parameters} parameters")
    assert not found


def test_layers_that_compute_without_tensors_never_import_torch():
    wrong = []
    for path in MODULES:
        if path.relative_to(SRC).parts[0] not in TORCH_FREE:
            continue
        top = ast.Module(body=ast.parse(path.read_text(encoding="utf-8")).body, type_ignores=[])
        for node in top.body:
            for line, name in imports_of(node) if isinstance(node, ast.Import | ast.ImportFrom) else []:
                if name.split(".")[0] in {"torch", "transformers"}:
                    wrong.append(f"{path}:{line} imports {name}")
    assert not wrong


def test_the_command_line_starts_without_torch():
    code = (
        "import sys, firstchair.cli.main, importlib\n"
        "for module, _ in firstchair.cli.main.COMMANDS.values(): importlib.import_module(module)\n"
        "print([name for name in ('torch', 'transformers', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
