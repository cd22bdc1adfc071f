"""Reads the signatures that the vllm engine relies on out of vLLM's wheel, without importing or installing it:

pip download vllm==0.33.0 --no-deps
python tests/backends/chat/extract_vllm_signatures.py vllm-0.33.0-*.whl > tests/backends/chat/vllm_signatures.json
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile


def parameters(function: ast.FunctionDef) -> list[dict[str, object]]:
    """The parameters after `self`: name, kind, and whether there is a default."""
    arguments = function.args
    found: list[dict[str, object]] = []
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    for place, argument in enumerate(positional):
        if place:
            found.append({"name": argument.arg, "kind": "positional", "default": place >= first_default})
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append({"name": argument.arg, "kind": "keyword", "default": default is not None})
    if arguments.kwarg:
        found.append({"name": arguments.kwarg.arg, "kind": "keywords", "default": True})
    return found


def fields(owner: ast.ClassDef) -> list[dict[str, object]]:
    """The public fields that its constructor takes, in order: name, and whether there is a default."""
    return [
        {"name": node.target.id, "kind": "positional", "default": node.value is not None}
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_"
    ]


def class_of(wheel: zipfile.ZipFile, path: str, name: str) -> ast.ClassDef:
    tree = ast.parse(wheel.read(path))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def method_of(owner: ast.ClassDef, name: str) -> ast.FunctionDef:
    return next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == name)


def main(path: str) -> None:
    with zipfile.ZipFile(path) as wheel:
        llm = class_of(wheel, "vllm/entrypoints/llm.py", "LLM")
        sampling = class_of(wheel, "vllm/sampling_params.py", "SamplingParams")
        held = class_of(wheel, "vllm/sampling_params.py", "StructuredOutputsParams")
        request = class_of(wheel, "vllm/outputs.py", "RequestOutput")
        completion = class_of(wheel, "vllm/outputs.py", "CompletionOutput")
        engine = class_of(wheel, "vllm/engine/arg_utils.py", "EngineArgs")
        parts = ast.parse(wheel.read("vllm/renderers/chat_utils/chat_message.py"))
        errors = [ast.parse(wheel.read(f"vllm/{path}.py")) for path in ("exceptions", "v1/engine/exceptions")]
        reasons = ast.parse(wheel.read("vllm/v1/engine/__init__.py"))
    found = {
        "wheel": path.rpartition("/")[2],
        "LLM.__init__": parameters(method_of(llm, "__init__")),
        # What LLM passes on by its **kwargs.
        "EngineArgs": [field["name"] for field in fields(engine)],
        "LLM.chat": parameters(method_of(llm, "chat")),
        "SamplingParams": fields(sampling),
        "StructuredOutputsParams": fields(held),
        "RequestOutput": parameters(method_of(request, "__init__")),
        "CompletionOutput": fields(completion),
        "content parts": sorted(
            key.value
            for node in parts.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
            for key in node.value.keys
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ),
        # Each with its base: vLLM's are no ValueError.
        "errors": {
            node.name: ast.unparse(node.bases[0])
            for tree in errors
            for node in tree.body
            if isinstance(node, ast.ClassDef)
        },
        "finish reasons": next(
            ast.literal_eval(node.value)
            for node in reasons.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FINISH_REASON_STRINGS"
        ),
    }
    print("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()) + "\n}")


if __name__ == "__main__":
    main(sys.argv[1])
