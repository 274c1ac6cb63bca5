"""docs/design.md: a module imports only from rows of the table of layers above its own."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "zen_jax"


def layers():
    """For each row of the table, its modules and packages of zen_jax as import paths."""
    table = (ROOT / "docs" / "design.md").read_text().partition("## Layers")[2]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `zen_jax/")]
    return [["zen_jax." + re.sub(r"^zen_jax/|/$|\.py$", "", name) for name in re.findall(r"`(.*?)`", c)] for c in cells]


def layer(module, rows):
    found = [i for i, row in enumerate(rows) if any(f"{module}.".startswith(f"{name}.") for name in row)]
    assert len(found) == 1, f"{module} is in {len(found)} rows of the table of layers"
    return found[0]


def imported(path):
    """The modules of zen_jax that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "zen_jax")
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "zen_jax":
            for name in node.names:
                inside = PACKAGE.parent.joinpath(*node.module.split("."), name.name)
                is_module = inside.with_suffix(".py").exists() or inside.is_dir()
                yield f"{node.module}.{name.name}" if is_module else node.module


def test_modules_import_from_the_layers_above_their_own():
    rows = layers()
    assert len(rows) > 8
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if module == "zen_jax":
            continue
        for other in imported(path):
            if other != "zen_jax":  # its version
                assert layer(other, rows) <= layer(module, rows), f"{module} imports {other}, a layer below it"
