"""Training and evaluation as a Prefect flow: `prefect deployment run train-eval/seda`.

The flow depends on the published dataset and says at once when it is not there; with `build` it runs build-pab first,
which does nothing where the dataset is up to date. What it starts is `python -m pipeline.train_eval`, in a process of
its own whose lines go into the flow's log. A process that was killed is started again and goes on where it was.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Literal

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.build_pab import RETRIES, RETRY_DELAY_S, build_pab, worth_retrying
from pipeline.core.errors import UserError
from pipeline.core.profile import load_profile
from pipeline.evaluate_weights import figures
from pipeline.train_options import DEFAULT_DATA, folder_of
from pipeline.training.samples import check_there

THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What workers are held to, so that the dataset's bytes do not depend on it; training uses the whole machine."""
LAST_LINES = 5


@task(
    name="train",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAY_S,
    retry_condition_fn=worth_retrying,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def run_command(arguments: list[str]) -> None:
    """Run the command to its end; its lines go into the log.

    Raises UserError with its line where the input is wrong, ChildProcessError (worth another try) where it was killed,
    RuntimeError with its last lines where it failed in another way.
    """
    logger = get_run_logger()
    environment = {name: value for name, value in os.environ.items() if name not in THREAD_LIMITS}
    lines: list[str] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.train_eval", *arguments],
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.strip():
                lines.append(line.rstrip())
                logger.info(lines[-1])
        code = process.wait()
    finally:
        # A flow run that is cancelled takes its training along.
        if process.poll() is None:
            process.kill()
            process.wait()
    if code < 0:
        raise ChildProcessError(f"the training process was killed by signal {-code}")
    if code == 2:
        wrong = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        raise UserError("\n".join(wrong or lines[-LAST_LINES:]))
    if code:
        raise RuntimeError(f"the training process ended with {code}:\n" + "\n".join(lines[-LAST_LINES:]))


@flow(name="train-eval", flow_run_name="{model} seed {seed}", persist_result=False, validate_parameters=True)
def train_eval(
    model: str = "cmp",
    data: str | None = None,
    preset: str = "auto",
    seed: int = 42,
    epochs: int | None = None,
    batch_size: int | None = None,
    fraction: float = 1.0,
    reproduce: Literal["published", "paper"] | None = None,
    init: str | None = None,
    fusion: str | None = None,
    protocol: str | None = None,
    threads: int | None = None,
    out: str | None = None,
    changes: list[str] | None = None,
    build: str | None = None,
    build_overrides: list[str] | None = None,
) -> State[Any]:
    """Train a model and evaluate its last and its best weights on the test split.

    Args:
        model: a recipe of `python -m pipeline.train_eval --list`.
        data: the published dataset, pab:FOLDER or tipr:SET:FOLDER; ./out/pab where none is given.
        preset: paper, small, or auto (paper with a GPU).
        seed: of everything that is drawn.
        epochs: instead of the preset's.
        batch_size: pairs a process and step, instead of the preset's.
        fraction: of the training samples, by id.
        reproduce: published (the published code, faults included) or paper (the papers' equations).
        init: where weights start: minilm, none, xvlm16m:FILE, aptm:FILE or swin:FILE.
        fusion: how scores are joined: single, itm_only, linear:WEIGHT or ref_world:PROCESSES.
        protocol: by what it is judged, with commas between several: pab, ucc, multi-weather; pab where none is given.
        threads: CPU threads; all that torch takes where none is given.
        out: the run's folder; runs/MODEL-PRESET-seedN where none is given.
        changes: options of the recipe to change, each as option=value, e.g. optimiser.lr=3e-4.
        build: a profile (demo, full) to build first, as build-pab does, and to train on; instead of data.
        build_overrides: values of that profile to change, each as key=value.

    Ends Completed, with the figures in an artifact; ends Failed with a line for a person where the dataset is not there
    or a parameter is wrong. Run again, it goes on where it was.
    """
    logger = get_run_logger()
    try:
        if build is not None and data is not None:
            raise UserError(f"data {data}, build {build}: give one of the two; what is built is what is trained on")
        place = data or DEFAULT_DATA
        if build is not None:
            place = str(load_profile(build, build_overrides or []).out)
        options = {
            "model": model,
            "data": place,
            "preset": preset,
            "seed": seed,
            "epochs": epochs,
            "batch-size": batch_size,
            "fraction": fraction,
            "reproduce": reproduce,
            "init": init,
            "fusion": fusion,
            "protocol": protocol,
            "threads": threads,
            "out": out,
        }
        arguments = [f"--{name}={value}" for name, value in options.items() if value is not None]
        arguments += [f"--set={each}" for each in changes or []]
        folder = folder_of(arguments)
        if build is not None:
            built = build_pab(profile=build, overrides=build_overrides or [], return_state=True)
            if not built.is_completed():
                return Failed(message=f"build-pab did not come through: {built.message}")
        _check_there(place)
        logger.info(f"python -m pipeline.train_eval {' '.join(arguments)}")
        run_command(arguments)
        table = figures(folder)
    except (UserError, ChildProcessError, RuntimeError) as error:
        logger.error(str(error))
        return Failed(message=str(error))
    create_markdown_artifact(
        key="train-eval-figures",
        description=f"What {model} (seed {seed}) found on the test split of {place}",
        markdown=f"# {model}, seed {seed}\n\n{table}\n",
    )
    return Completed(message=f"weights and figures are in {folder}")


def _check_there(data: str) -> None:
    try:
        check_there(data)
    except UserError as error:
        raise UserError(
            f"{error}. In Prefect: prefect deployment run build-pab/demo --watch, or give this flow build=demo"
        ) from None
