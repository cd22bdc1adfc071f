"""The compose file: valid by the specification's own schema, and by the rules that the schema does not know."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import pytest
import yaml

from tests.docker.scripts import DOCKER, ROOT, instructions

SERVICES = {"database", "server", "deploy", "cpu-worker", "gpu-worker", "vllm"}
HEALTH_SCRIPTS = {"health.py", "health-database.sh"}
SCHEMA = json.loads(
    (Path(check_jsonschema.__file__).parent / "builtin_schemas/vendor/compose-spec.json").read_text("utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
TEXT = (DOCKER / "compose.yaml").read_text("utf-8")


def filled(text: str, **values: str) -> str:
    """The text with `${NAME:-default}` put in, as compose does it."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: values.get(found[1], found[2]), text)


def compose(**values: str) -> dict[str, Any]:
    return yaml.safe_load(filled(TEXT, **values))


def broken_rules(document: dict[str, Any]) -> list[str]:
    """A line for every rule of this project that the document breaks."""
    found = []
    for name, service in document["services"].items():
        one_shot = service["restart"].startswith("on-failure:")
        image = service.get("image", "")
        if not (image.startswith("pab-rebuild:") and "build" in service) and not re.search(
            r":v?\d+\.\d+(\.\d+)?", image
        ):
            found.append(f"{name}: its image is neither built here nor pinned")
        if str(service.get("user", "root")).split(":")[0] in ("root", "0"):
            found.append(f"{name}: runs as root")
        if not one_shot and service["restart"] != "unless-stopped":
            found.append(f"{name}: does not come back")
        test = service.get("healthcheck", {}).get("test", [])
        if not one_shot and not any(Path(part).name in HEALTH_SCRIPTS for part in test):
            found.append(f"{name}: its health is not checked by a script of the repository")
        if "ALL" not in service.get("cap_drop", []) or "no-new-privileges:true" not in service.get("security_opt", []):
            found.append(f"{name}: may gain rights")
        found += [f"{name}: port {port} is open to others" for port in service.get("ports", []) if not _loopback(port)]
        for other, how in service.get("depends_on", {}).items():
            target = document["services"][other]
            ends = target["restart"].startswith("on-failure:")
            if how["condition"] != ("service_completed_successfully" if ends else "service_healthy"):
                found.append(f"{name}: does not wait for {other} to be ready")
        for key, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|TOKEN|KEY", key) and not key.endswith("_FILE"):
                found.append(f"{name}: {key} is for all to read")
            if re.search(r"://[^/@]*:[^/@]*@", str(value)):
                found.append(f"{name}: {key} holds a password")
        if service.get("network_mode") or service.get("privileged") or service.get("pid") or service.get("ipc"):
            found.append(f"{name}: is not apart from the host")
    return found


def _loopback(port: Any) -> bool:
    return isinstance(port, str) and port.startswith("127.0.0.1:") and port.count(":") == 2


def gpus(service: dict[str, Any]) -> list[str]:
    devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
    for device in devices:
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    return [each for device in devices for each in device["device_ids"]]


def test_the_file_is_valid_by_the_specifications_schema():
    VALIDATOR.validate(compose())


@pytest.mark.parametrize("wrong", ["depend_on", "healthcheks", "device_reservations"])
def test_the_schema_would_find_a_misspelt_key(wrong):
    document = compose()
    document["services"]["server"][wrong] = {}
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(document)


def test_no_rule_is_broken():
    assert set(compose()["services"]) == SERVICES
    assert broken_rules(compose()) == []


@pytest.mark.parametrize(
    ("service", "change", "said"),
    [
        ("vllm", {"image": "vllm/vllm-openai:latest"}, "vllm: its image is neither built here nor pinned"),
        ("vllm", {"user": "0:0"}, "vllm: runs as root"),
        ("server", {"ports": ["4200:4200"]}, "server: port 4200:4200 is open to others"),
        ("server", {"ports": ["0.0.0.0:4200:4200"]}, "server: port 0.0.0.0:4200:4200 is open to others"),
        ("database", {"restart": "no"}, "database: does not come back"),
        ("database", {"environment": {"POSTGRES_PASSWORD": "x"}}, "database: POSTGRES_PASSWORD is for all to read"),
        ("server", {"environment": {"URL": "postgresql://a:b@database/c"}}, "server: URL holds a password"),
        ("cpu-worker", {"healthcheck": {"test": ["CMD", "true"]}}, "cpu-worker: its health is not checked by a script"),
        (
            "server",
            {"depends_on": {"database": {"condition": "service_started"}}},
            "server: does not wait for database",
        ),
        ("gpu-worker", {"cap_drop": []}, "gpu-worker: may gain rights"),
        ("gpu-worker", {"ipc": "host"}, "gpu-worker: is not apart from the host"),
    ],
)
def test_a_broken_rule_is_found(service, change, said):
    document = copy.deepcopy(compose())
    document["services"][service] |= change
    assert [line for line in broken_rules(document) if line.startswith(said)]


def test_the_gpu_worker_and_the_vllm_server_have_a_gpu_each_and_nothing_else_has_one():
    services = compose()["services"]
    held = {name: gpus(service) for name, service in services.items() if gpus(service)}
    assert held == {"gpu-worker": ["0"], "vllm": ["1"]}
    assert {name for name, service in services.items() if service.get("profiles")} == set(held)


def test_the_health_check_asks_for_the_model_that_is_served():
    vllm = compose(PAB_VLLM_MODEL="a/b")["services"]["vllm"]
    assert "--model=a/b" in vllm["command"]
    assert vllm["healthcheck"]["test"][-2:] == ["--model", "a/b"]


def test_the_database_is_on_a_network_that_leads_nowhere_and_only_the_server_reaches_it():
    document = compose()
    assert document["networks"]["database"] == {"internal": True}
    inside = {name for name, service in document["services"].items() if "database" in service["networks"]}
    assert inside == {"database", "server"}
    assert document["services"]["database"]["networks"] == ["database"]


def test_the_password_comes_from_outside_and_is_shown_to_who_needs_it():
    document = compose()
    assert document["secrets"] == {"database_password": {"environment": "PAB_DATABASE_PASSWORD"}}
    assert {name for name, service in document["services"].items() if service.get("secrets")} == {"database", "server"}
    assert "\nPAB_DATABASE_PASSWORD=\n" in (DOCKER / "env.example").read_text("utf-8")


def test_every_variable_of_the_file_is_in_the_example_with_its_default():
    example = (DOCKER / "env.example").read_text("utf-8")
    for name, default in re.findall(r"\$\{(\w+):-([^}]*)\}", TEXT):
        assert f"\n#{name}={default}\n" in example
    for name in re.findall(r"^#?([A-Z]\w+)=", example, flags=re.MULTILINE):
        assert name in TEXT


def test_volumes_are_declared_and_what_is_mounted_from_here_exists():
    document = compose()
    named = set()
    for service in document["services"].values():
        for volume in service.get("volumes", []):
            source = volume["source"] if isinstance(volume, dict) else volume.split(":")[0]
            if source.startswith("./"):
                assert volume.endswith(":ro")
                assert (DOCKER / source).is_file()
            elif not source.startswith(".."):
                named.add(source)
            else:
                assert volume["read_only"] is True
    assert named == set(document["volumes"])


def test_what_is_built_and_run_is_in_the_repository():
    for name, service in compose()["services"].items():
        if "build" not in service:
            continue
        assert (DOCKER / service["build"]["context"]).resolve() == ROOT
        dockerfile = ROOT / service["build"]["dockerfile"]
        (user,) = [rest for instruction, rest in instructions(dockerfile.read_text("utf-8")) if instruction == "USER"]
        assert service["user"] == user
        python = {"pab-rebuild:cpu": "python", "pab-rebuild:gpu": "python3.11"}[service["image"]]
        for command in (service["command"], service.get("healthcheck", {}).get("test", ["CMD"])[1:]):
            if command:
                assert command[0] == python, name
                assert (ROOT / command[1]).is_file()
