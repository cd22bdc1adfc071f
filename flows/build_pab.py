"""The build as a Prefect flow: `prefect deployment run build-pab/demo`, one task a (stage, shard).

Prefect brings scheduling, retries, limits and the UI. What a task is given are names; what it does is `shard_task`, the
same that `python -m pipeline.build` runs in the same kind of worker processes. Whether work is done the store decides,
so nothing is cached here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect import Task, flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.concurrency.sync import concurrency
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.settings import GPU_LIMIT
from pipeline import build as plain_build
from pipeline import footage, gpu_stages, preflight, report, stages, tiny_models
from pipeline.core.errors import UserError
from pipeline.core.gpus import visible_gpus
from pipeline.core.profile import Profile, load_profile
from pipeline.core.stage import Stage
from pipeline.core.workers import Workers

INFRASTRUCTURE_ERRORS: tuple[type[BaseException], ...] = (BrokenProcessPool, OSError, EOFError, MemoryError)
"""What a second try may mend: a worker that was killed, a disk or a connection that gave out, memory that was short."""

RETRIES = 2
RETRY_DELAY_S = 10


class ShardsFailedError(RuntimeError):
    """Some shards of a stage did not come through."""

    def __init__(self, step: str, errors: dict[str, str]) -> None:
        self.errors = errors
        lines = "\n".join(f"  * {name}: {error}" for name, error in errors.items())
        super().__init__(f"{step}: {len(errors)} of its tasks failed; the others are kept:\n{lines}")


_shared_workers: ContextVar[Workers | None] = ContextVar("shared_workers", default=None)


@contextmanager
def _sharing_workers(workers: int) -> Iterator[Workers]:
    with Workers(workers) as shared:
        token = _shared_workers.set(shared)
        try:
            yield shared
        finally:
            _shared_workers.reset(token)


@contextmanager
def _holding_gpus(workers: Workers, engine: str | None) -> Iterator[None]:
    """Let this flow run's GPU stages be the only ones: of all builds on a machine one at a time has its GPUs.

    The processes end before the slot is given back: one that waited for a GPU with the slot in hand, while its holder
    waited for the slot, would wait for ever.
    """
    if engine is None or not workers.gpus:
        yield
        return
    with concurrency(GPU_LIMIT, occupy=1):
        try:
            yield
        finally:
            workers.release_gpus()


def _in_worker(function: Callable[..., Any], *arguments: Any, engine: str | None = None) -> Any:
    # A task that another machine runs (Dask) does not see the flow run's processes: there it is in one of its own.
    shared = _shared_workers.get()
    return shared.run(function, *arguments, engine=engine) if shared is not None else function(*arguments)


def worth_retrying(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether a task failed for a reason that may be gone at the next try; what a person must mend is not."""
    try:
        state.result()
    except INFRASTRUCTURE_ERRORS:
        return True
    except BaseException:
        return False
    return False


@task(
    name="shard",
    task_run_name="{stage} {shard}",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAY_S,
    retry_condition_fn=worth_retrying,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def run_shard(stage: str, shard: str, profile: str, build: str, overrides: list[str]) -> None:
    """Bring one shard of one stage up to date."""
    loaded = load_profile(profile, overrides)
    engine = gpu_stages.gpu_engine(stages.stage(stage), loaded)
    outcome = _in_worker(plain_build.shard_task, loaded, build, stage, shard, engine=engine)
    counts = outcome.counts
    get_run_logger().info(
        f"{'built' if outcome.built else 'up to date'}: in {counts['in']} = kept {counts['kept']} + "
        f"rejected {counts['rejected']} + failed {counts['failed']}"
    )


@task(
    name="footage",
    task_run_name="footage {number}",
    retries=RETRIES,
    retry_delay_seconds=RETRY_DELAY_S,
    retry_condition_fn=worth_retrying,
    cache_policy=NO_CACHE,
    persist_result=False,
    tags={"cpu", "simulator"},
)
def film(number: int, profile: str, overrides: list[str]) -> None:
    """Film the clips of one footage task."""
    _in_worker(plain_build.film_task, load_profile(profile, overrides), number)


def engine_tags(stage: Stage, profile: Profile) -> set[str]:
    """The tags of a stage's tasks: its engines' names, and `gpu` where one of them wants one, else `cpu`.

    They are for people and for limits of their own; that builds do not meet on a GPU is `_holding_gpus`'s business.
    """
    device = "gpu" if gpu_stages.gpu_engine(stage, profile) is not None else "cpu"
    return {device, *(getattr(profile, section).backend for section in stage.engines)}


def run_all(
    step: str, work: Task[..., Any], calls: Iterable[dict[str, Any]], runner: ThreadPoolTaskRunner[Any]
) -> None:
    """Run a task over all calls; those for which the runner has no thread queue.

    All are tried even where some fail, so that a second run finds as much done as can be. Raises ShardsFailedError.
    """
    calls = list(calls)
    futures = [runner.submit(work, call) for call in calls]
    for future in futures:
        future.wait()
    errors: dict[str, str] = {}
    for call, future in zip(calls, futures, strict=True):
        if not future.state.is_completed():
            errors[str(call.get("shard", call.get("number")))] = str(future.state.message or future.state.name)
    if errors:
        raise ShardsFailedError(step, errors)


@flow(name="build-pab", flow_run_name="{profile}", persist_result=False, validate_parameters=True)
def build_pab(profile: str = "demo", build: str | None = None, overrides: list[str] | None = None) -> State[Any]:
    """Build the dataset that a profile describes.

    Args:
        profile: a profile's name (demo, full) or the path of a YAML file.
        build: the folder under work/; the profile's name where none is given.
        overrides: profile values to change, each as key=value, e.g. generate.images_per_caption=2.

    Ends Completed, and says in the state's message how many records failed; ends Failed with a list for a person where
    something is missing on this machine or some shards did not come through.
    """
    logger = get_run_logger()
    overrides = overrides or []
    try:
        loaded = load_profile(profile, overrides)
        name = build if build is not None else Path(profile).stem
        stages.build_dir(loaded, name)  # refuses a name that is no name before anything runs
        missing = preflight.missing_pieces(loaded, name)
        if missing:
            text = f"{preflight.explain(profile, missing)}\nIn a flow run, what --set says goes into overrides."
            logger.error(text)
            return Failed(message=text)
        message = _build(loaded, profile, name, overrides)
    except (UserError, ShardsFailedError) as error:
        logger.error(str(error))
        return Failed(message=str(error))
    return Completed(message=message)


def _build(loaded: Profile, profile: str, build: str, overrides: list[str]) -> str:
    logger = get_run_logger()
    common = {"profile": profile, "overrides": overrides}
    # A thread only waits for a process, so that GPUs beyond the number of CPU workers are busy too.
    threads = max(loaded.workers, len(visible_gpus()))
    runner: ThreadPoolTaskRunner[None] = ThreadPoolTaskRunner(max_workers=threads)
    with _sharing_workers(loaded.workers) as workers, runner:
        state = footage.footage_state(loaded)
        if state.simulated and not state.ready:
            footage.prepare(loaded)
            run_all("footage", film, ({"number": number, **common} for number in range(state.tasks)), runner)
            footage.finish(loaded)
        if tiny_models.wanting(loaded):
            _in_worker(plain_build.tiny_models_task, loaded)
        tiny_models.write_reviews(loaded)
        for engine, stages_of_engine in gpu_stages.by_gpu_engine(stages.all_stages(), loaded):
            with _holding_gpus(workers, engine):
                for stage in stages_of_engine:
                    work = run_shard.with_options(tags=engine_tags(stage, loaded))
                    calls = (
                        {"stage": stage.name, "shard": shard, "build": build, **common}
                        for shard in stages.shard_names(stage, loaded)
                    )
                    run_all(stage.name, work, calls, runner)
                    logger.info(f"{stage.name}: done")
    sheets = report.write_sheets(loaded, build)
    summary = report.summary(loaded, build)
    text = report.format_summary(summary)
    logger.info(f"{text}\ndataset   {loaded.out}\n" + "\n".join(f"look at   {sheet}" for sheet in sheets))
    create_markdown_artifact(
        key="build-pab-summary",
        description=f"What the build '{build}' made of profile '{profile}'",
        markdown=f"# {build}\n\n```\n{text}\n```\n\nDataset: `{loaded.out}`\n\n"
        + "\n".join(f"* contact sheet `{sheet}`" for sheet in sheets),
    )
    if summary.failed:
        return f"the dataset is in {loaded.out}; {summary.failed} records failed, see the summary for why"
    return f"the dataset is in {loaded.out}; no record failed"
