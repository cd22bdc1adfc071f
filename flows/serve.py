"""Starts the Prefect server, and the worker with its deployments, on loopback.

python -m flows.serve server     in one terminal (make server)
python -m flows.serve worker     in another (make worker): registers the deployments, then takes flow runs
prefect deployment run build-pab/demo --watch        in a third, in this folder
prefect deployment run train-eval/seda --watch       then, on what was built
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from flows.settings import (
    DEPLOYMENTS,
    GPU_LIMIT,
    HOST,
    PORT,
    ROOT,
    SERVER_ENVIRONMENT,
    TRAINING_DEPLOYMENTS,
    WORK_POOL,
    api_url,
    prefect_environment,
)
from pipeline.core.errors import UserError
from pipeline.core.workers import ONE_THREAD


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Exit codes: 0 done, 2 no server answers or the command is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"the server's port on {HOST} (default: {PORT})")
    parser.add_argument("--home", type=Path, help="the folder for Prefect's database (default: .prefect)")
    parser.add_argument("--wait", type=float, default=120, help="seconds to wait for the server (default: 120)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("server", help="run the Prefect server, with its UI, until Ctrl-C")
    commands.add_parser(
        "deploy",
        help="register build-pab/{demo,pilot,full,full-sdxl}, train-eval/{cmp,seda,gradco,lightair} and the work pool",
    )
    commands.add_parser("worker", help="deploy, then run the process worker until Ctrl-C")
    options = parser.parse_args(argv)
    os.environ.update(prefect_environment(options.home, options.port))
    os.chdir(ROOT)
    try:
        if options.command == "server":
            os.environ.update(SERVER_ENVIRONMENT)
            _become_prefect("server", "start", "--host", HOST, "--port", str(options.port))
        wait_for_server(options.port, options.wait)
        for name in register():
            print(f"registered {name}: prefect deployment run {name} --watch", flush=True)
        if options.command == "worker":
            _become_prefect("worker", "start", "--pool", WORK_POOL, "--type", "process")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def wait_for_server(port: int, seconds: float) -> None:
    """Return as soon as the server answers. Raises UserError where it does not in this time."""
    deadline = time.monotonic() + seconds
    told = False
    while True:
        try:
            with urllib.request.urlopen(f"{api_url(port)}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise UserError(f"no Prefect server answers at {api_url(port)}: start one with make server") from None
            if not told:
                print(f"waiting for the Prefect server at {api_url(port)} (make server)", file=sys.stderr, flush=True)
                told = True
            time.sleep(0.5)


def register() -> list[str]:
    """Make the process work pool and the limit of GPU stages where there are none, and register the deployments.

    Returns their full names.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, WorkPoolCreate
    from prefect.deployments.runner import EntrypointType, RunnerDeployment
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    from flows.build_pab import build_pab
    from flows.train_eval import train_eval

    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        with contextlib.suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name=WORK_POOL, type="process", base_job_template=template))
        # One that is there stays: a person may have raised it (prefect gcl update pab-gpus --limit 2).
        with contextlib.suppress(ObjectAlreadyExists):
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=GPU_LIMIT, limit=1))
    wanted: list[tuple[Any, str, str, dict[str, str]]]
    wanted = [(build_pab, name, text, {"profile": name}) for name, text in DEPLOYMENTS.items()]
    wanted += [(train_eval, name, text, {"model": name}) for name, text in TRAINING_DEPLOYMENTS.items()]
    names = []
    for flow, name, description, parameters in wanted:
        deployment = RunnerDeployment.from_flow(
            flow,
            name=name,
            description=description,
            parameters=parameters,
            work_pool_name=WORK_POOL,
            job_variables={"working_dir": os.fspath(ROOT), "env": dict(ONE_THREAD)},
            tags=["pab"],
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        deployment.apply()
        names.append(f"{flow.name}/{name}")
    return names


def _become_prefect(*arguments: str) -> NoReturn:
    # The same process, so that signals and exit codes are Prefect's own.
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "prefect", *arguments])


if __name__ == "__main__":
    raise SystemExit(main())
