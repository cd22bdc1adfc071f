"""The health checks, against live processes: a stand-in for vLLM, PostgreSQL, a Prefect server and a worker."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.docker.scripts import DOCKER, ROOT, module

health = module("health")
MODEL = "Qwen/Qwen2-VL-7B-Instruct"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def check(*arguments: str) -> tuple[int, str]:
    """Exit code and words of the check as a container runs it: a bare Python, nothing of this project."""
    command = [sys.executable, "-I", "-S", DOCKER / "health.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/", env={})
    return done.returncode, done.stderr


class Answers(ThreadingHTTPServer):
    """A server on loopback that answers what `answers` says by path: code, body and seconds to wait first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, tuple[int, bytes, float]] = {}
        self.address = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        code, body, seconds = self.server.answers.get(self.path, (404, b"", 0))
        time.sleep(seconds)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served() -> Iterator[Answers]:
    server = Answers()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


MODELS = json.dumps({"object": "list", "data": [{"id": "other"}, {"id": MODEL}]}).encode()


def test_vllm_is_healthy_when_its_engine_lives_and_it_serves_the_model(served):
    served.answers = {"/health": (200, b"", 0), "/v1/models": (200, MODELS, 0)}
    assert check("vllm", "--address", served.address, "--model", MODEL) == (0, "")


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("/health", (503, b"the engine is dead", 0), "answers 503: the engine is dead"),
        ("/health", (204, b"", 0), "answers 204"),
        ("/health", (200, b"", 3), "does not answer: timed out"),
        ("/v1/models", (200, b'{"data": [{"id": "other"}]}', 0), f"serves other, not {MODEL}"),
        ("/v1/models", (200, b'{"data": []}', 0), f"serves no model, not {MODEL}"),
        ("/v1/models", (200, b"<html>", 0), "/v1/models is no list of models"),
        ("/v1/models", (200, b"[]", 0), "/v1/models is no list of models"),
        ("/v1/models", (401, b"", 0), "answers 401"),
    ],
)
def test_vllm_is_not_healthy_when(served, capsys, path, answer, said):
    served.answers = {"/health": (200, b"", 0), "/v1/models": (200, MODELS, 0), path: answer}
    code = health.main(["vllm", "--address", served.address, "--model", MODEL, "--seconds", "1"])
    assert code == 1
    assert said in capsys.readouterr().err


def test_a_proxy_is_not_asked(served, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    served.answers = {"/health": (200, b"", 0)}
    assert health.main(["worker", "--address", served.address]) == 0


@pytest.mark.parametrize("service", ["server", "worker"])
def test_where_nobody_listens_nothing_is_healthy(service):
    code, said = check(service, "--address", f"http://127.0.0.1:{free_port()}")
    assert code == 1
    assert "Connection refused" in said


@pytest.mark.parametrize("arguments", [["vllm"], ["server", "--model", "x"], ["redis"]])
def test_a_wrong_command_is_said_to_be_one(arguments):
    with pytest.raises(SystemExit) as ended:
        health.main(arguments)
    assert ended.value.code == 2


def postgres_programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return found[-1].parent if found else None


PASSWORD = 'p w:"x@/%'


class Database:
    """A PostgreSQL server on loopback whose user `prefect` has PASSWORD."""

    def __init__(self, folder: Path) -> None:
        programs = postgres_programs()
        assert programs is not None
        self.folder, self.programs, self.port = folder, programs, free_port()
        self.secret = folder / "secret"
        self.secret.write_text(f"{PASSWORD}\n")
        # PostgreSQL refuses to run as root, so that it gets the user its package made.
        self._as = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(folder, user.pw_uid, user.pw_gid)
            os.chown(self.secret, user.pw_uid, user.pw_gid)
        options = ["--username=prefect", "--auth=scram-sha-256", f"--pwfile={self.secret}", "--encoding=UTF8"]
        self._run("initdb", *options, "--no-locale", "--no-sync")
        self._run("pg_ctl", "-w", "-o", f"-p {self.port} -h 127.0.0.1 -k {folder} -F", "-l", f"{folder}/log", "start")

    def _run(self, program: str, *arguments: str) -> None:
        command = [self.programs / program, "-D", self.folder / "data", *arguments]
        output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        subprocess.run(command, check=True, timeout=120, cwd=self.folder, **output, **self._as)

    def health(self, **changes: str) -> int:
        environment = {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "PGPORT": str(self.port),
            "POSTGRES_USER": "prefect",
            "POSTGRES_DB": "postgres",
            "POSTGRES_PASSWORD_FILE": str(self.secret),
            **changes,
        }
        command = ["sh", DOCKER / "health-database.sh"]
        return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False).returncode

    def stop(self) -> None:
        self._run("pg_ctl", "-m", "immediate", "stop")


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    folder = Path(tempfile.mkdtemp(prefix="pab-", dir="/tmp"))  # pytest's folders are closed to other users
    running = Database(folder)
    try:
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder)


@pytest.mark.skipif(postgres_programs() is None, reason="PostgreSQL is not installed: apt-get install postgresql")
def test_the_database_is_healthy_when_the_password_lets_in_and_a_query_is_answered(database, tmp_path):
    assert database.health() == 0
    wrong = tmp_path / "secret"
    wrong.write_text("another")
    assert database.health(POSTGRES_PASSWORD_FILE=str(wrong)) != 0
    assert database.health(POSTGRES_PASSWORD_FILE=str(tmp_path / "none")) != 0
    assert database.health(POSTGRES_DB="no_such_database") != 0
    assert database.health(PGPORT=str(free_port())) != 0


class Service:
    """A command of docker/serve.py, with what a container would be given."""

    def __init__(self, folder: Path, *command: str, **environment: str) -> None:
        self.log = folder / f"{'-'.join(command)}.log"
        given = {**os.environ, "PREFECT_HOME": str(folder / "home"), **environment}
        given["PREFECT_RESULTS_LOCAL_STORAGE_PATH"] = str(folder / "home" / "storage")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, DOCKER / "serve.py", *command],
                cwd=folder,
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_healthy(self, seconds: float, *arguments: str) -> None:
        deadline = time.monotonic() + seconds
        while health.main(list(arguments)) != 0:
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail(f"{arguments[0]} did not become healthy:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.3)

    def freeze(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)
        state = Path(f"/proc/{self.process.pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.05)

    def stop(self) -> None:
        for sign in (signal.SIGCONT, signal.SIGTERM):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(8)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(8)


@pytest.mark.skipif(os.environ.get("CHECK_DOCKER") != "1", reason="half a minute for itself: make check-docker runs it")
def test_prefects_server_and_worker_are_healthy_once_they_work_and_not_when_they_hang(tmp_path, capsys):
    port, worker_port = free_port(), free_port()
    api = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api", "PREFECT_SERVER_API_PORT": str(port)}
    address, worker_address = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{worker_port}"
    own = {"PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1", "PREFECT_WORKER_WEBSERVER_PORT": str(worker_port)}
    services = [Service(tmp_path, "server", **api)]
    try:
        services[0].wait_until_healthy(300, "server", "--address", address)
        services.append(Service(tmp_path, "worker", "gpu", **api, **own))
        services[1].wait_until_healthy(200, "worker", "--address", worker_address)
        assert check("server", "--address", address) == (0, "")
        assert check("worker", "--address", worker_address) == (0, "")
        asked_for = (["server", "--address", address], ["worker", "--address", worker_address])
        for service, asked in zip(services, asked_for, strict=True):
            service.freeze()
            capsys.readouterr()
            assert health.main([*asked, "--seconds", "0.5"]) == 1
            assert "timed out" in capsys.readouterr().err
    finally:
        for service in reversed(services):
            service.stop()


def test_the_password_reaches_prefect_from_the_file_alone(tmp_path):
    serve = module("serve")
    secret = tmp_path / "secret"
    secret.write_text("s p\n")
    given = {"PAB_DATABASE_PASSWORD_FILE": str(secret), "PREFECT_API_URL": "http://server:4200/api"}
    made = serve.container_environment(given)
    assert made["PREFECT_SERVER_DATABASE_PASSWORD"] == "s p"
    assert made["PREFECT_API_URL"] == "http://server:4200/api"
    assert made["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    secret.write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        serve.container_environment(given)
    assert "PREFECT_SERVER_DATABASE_PASSWORD" not in serve.container_environment({})


def test_a_password_file_that_is_not_there_ends_the_start_with_a_line(tmp_path):
    environment = {**os.environ, "PAB_DATABASE_PASSWORD_FILE": str(tmp_path / "none")}
    command = [sys.executable, DOCKER / "serve.py", "server"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_profiles_that_want_a_gpu_are_told_from_those_that_do_not():
    serve = module("serve")
    assert serve.wants_gpu("full")
    assert not serve.wants_gpu("demo")
