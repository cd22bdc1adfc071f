"""Where the Prefect server of this project listens, keeps its database, and what it may not do: the one place for it.

`pyproject.toml` repeats the address and the folder under [tool.prefect], where the `prefect` command looks for them, so
that nobody has to export anything.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.core.workers import ONE_THREAD

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
PORT = 4200
HOME = ".prefect"
WORK_POOL = "pab-local"
DEPLOYMENTS = {
    "demo": "Simulated footage and embedded engines, on a CPU with nothing downloaded.",
    "pilot": "A hundred captions through the paper's engines on one GPU; `full` takes its images over.",
    "full": "The paper's engines and sizes; needs the OOPS! folder, a GPU and the weights.",
    "full-sdxl": "The same with SDXL at 1024 px, five times the diffusion.",
}
"""Deployments of build-pab: name, which is the profile's, and description."""
TRAINING_DEPLOYMENTS = {
    "cmp": "Trains and evaluates CMP on the published dataset.",
    "seda": "Trains and evaluates SeDA on the published dataset.",
    "gradco": "Trains and evaluates GradCO on the published dataset.",
    "lightair": "Trains and evaluates LightAIR on the published dataset.",
}
"""Deployments of train-eval: name, which is the model's, and description."""


GPU_LIMIT = "pab-gpus"
"""The concurrency limit that a build's GPU stages take a slot of; a slot is one build on the GPUs of a machine."""


def api_url(port: int = PORT) -> str:
    """The address of the server's API."""
    return f"http://{HOST}:{port}/api"


def prefect_environment(home: Path | None = None, port: int = PORT) -> dict[str, str]:
    """The environment variables under which server, worker and flow runs of this project start.

    home: the folder for database and results, `.prefect` in the repository where none is given.
    """
    folder = (home or ROOT / HOME).resolve()
    return {
        **ONE_THREAD,
        "PREFECT_HOME": str(folder),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(folder / "storage"),  # does not follow PREFECT_HOME in 3.7
        "PREFECT_API_URL": api_url(port),
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_UI_API_URL": api_url(port),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # 20 s is too short for a first start on a slow disk
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_CLI_PROMPT": "false",
    }


SERVER_ENVIRONMENT = {
    # Prefect 3.7's SQLite server fails to mark a deployment ready at every poll of a worker ("database is locked",
    # mended upstream in PrefectHQ/prefect#22967). It harms nothing, so its traceback each time is kept off the
    # terminal; what `prefect` and `uvicorn` log has levels of its own.
    "PREFECT_LOGGING_ROOT_LEVEL": "CRITICAL",
}
"""What the server gets besides `prefect_environment`."""
