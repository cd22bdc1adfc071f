"""What the containers of docker/compose.yaml run: the Prefect server, the registration of deployments, the workers.

python docker/serve.py server               Prefect on PostgreSQL; the password is read from PAB_DATABASE_PASSWORD_FILE
python docker/serve.py deploy               registers the deployments, each in the pool of the worker that it needs
python docker/serve.py worker cpu|gpu       runs what is asked for in that pool, and answers /health

On one machine without containers `flows.serve` does this; here server and workers are on hosts of their own, so that
PREFECT_API_URL and the like come from the compose file and go before the project's loopback settings.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
if Path(sys.path[0]).resolve() == ROOT / "docker":
    sys.path[0] = str(ROOT)  # python puts a script's folder there, which is no place to look for the project's packages

from flows.settings import WORK_POOL, prefect_environment  # noqa: E402

GPU_POOL = "pab-gpu"
POOLS = {"cpu": WORK_POOL, "gpu": GPU_POOL}
SECRET = "PAB_DATABASE_PASSWORD_FILE"


def container_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of every command: the project's, with what the container was given in its place.

    Raises ValueError where the file of the password is named and holds none.
    """
    merged = {**prefect_environment(), **given}
    secret = given.get(SECRET)
    if secret is not None:
        password = Path(secret).read_text("utf-8").removesuffix("\n")
        if not password:
            raise ValueError(f"{secret} is empty: it must hold the database's password")
        merged["PREFECT_SERVER_DATABASE_PASSWORD"] = password
    return merged


def wants_gpu(profile_name: str) -> bool:
    """Whether an engine of a shipped profile runs on a GPU."""
    from pipeline.backends import registry
    from pipeline.core.profile import load_profile

    profile = load_profile(profile_name)
    engines = (registry.entry(section, getattr(profile, section).backend) for section in registry.SECTION_JOBS)
    return any(engine.gpu_gib is not None for engine in engines)


def deploy() -> dict[str, str]:
    """Register all deployments and put each into its pool. Returns pool by full name."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    from flows.serve import register

    names = register()
    pools = {}
    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        with contextlib.suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name=GPU_POOL, type="process", base_job_template=template))
        for name in names:
            deployment = client.read_deployment_by_name(name)
            profile = deployment.parameters.get("profile")
            pools[name] = GPU_POOL if profile is not None and wants_gpu(profile) else WORK_POOL
            client.update_deployment(deployment.id, DeploymentUpdate(work_pool_name=pools[name]))
    return pools


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; server and worker become Prefect's own process, so that signals and exit codes are its."""
    parser = argparse.ArgumentParser(
        prog="python docker/serve.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("server")
    commands.add_parser("deploy")
    commands.add_parser("worker").add_argument("pool", choices=POOLS)
    options = parser.parse_args(argv)
    try:
        environment = container_environment(os.environ)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    os.environ.update(environment)
    os.chdir(ROOT)
    if options.command == "server":
        address = ("--host", environment["PREFECT_SERVER_API_HOST"], "--port", environment["PREFECT_SERVER_API_PORT"])
        _become_prefect("server", "start", *address)
    if options.command == "worker":
        pool = ("--pool", POOLS[options.pool], "--type", "process", "--name", f"{options.pool}-worker")
        _become_prefect("worker", "start", *pool, "--limit", "1", "--with-healthcheck")
    for name, pool in deploy().items():
        print(f"registered {name} in {pool}", flush=True)
    return 0


def _become_prefect(*arguments: str) -> NoReturn:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "prefect", *arguments])


if __name__ == "__main__":
    raise SystemExit(main())
