"""The command lines: `python -m pipeline.<stage>`, `python -m pipeline.build`, `python -m pipeline.footage`.

Exit codes: 0 done, 1 done but some records failed, 2 the input or the command is wrong (one line says what and where).
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from pipeline.core.errors import UserError
from pipeline.core.profile import DEFAULT_PROFILE, Profile, load_profile, oops_root, profile_names
from pipeline.core.workers import use_one_thread

DONE, SOME_FAILED, WRONG = 0, 1, 2


def _guarded(run: Callable[[], int]) -> int:
    try:
        return run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on from here", file=sys.stderr)
        return 130


def common_parser(program: str, description: str) -> argparse.ArgumentParser:
    """The options that every command shares."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        metavar="NAME",
        help=f"one of {', '.join(profile_names())}, or the path of a .yaml file (default: {DEFAULT_PROFILE})",
    )
    parser.add_argument("--build", metavar="NAME", help="the folder under work/ (default: the profile's name)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a profile value, e.g. --set generate.images_per_caption=2 (may be given again)",
    )
    return parser


def profile_and_build(options: argparse.Namespace) -> tuple[Profile, str]:
    """The profile with its overrides, and the build's name."""
    from pathlib import Path

    profile = load_profile(options.profile, options.overrides)
    return profile, options.build if options.build is not None else Path(options.profile).stem


def stage_main(name: str, argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.<stage>`."""
    use_one_thread()
    from pipeline import stages

    made = stages.stage(name)
    parser = common_parser(f"pipeline.{name}", f"Stage {name}: {made.summary}.")
    parser.add_argument("--shard", metavar="N", help="3 is train-003, test-0 is test-000 (default: all shards)")
    parser.add_argument("--force", action="store_true", help="build again even where nothing has changed")
    parser.add_argument("--with-upstream", action="store_true", help="first build what this stage reads")
    options = parser.parse_args(argv)
    return _guarded(lambda: _run_stage(name, options))


def _run_stage(name: str, options: argparse.Namespace) -> int:
    from pipeline import footage, stages
    from pipeline.core.stage import parse_shard

    profile, build = profile_and_build(options)
    given = _given_options(options)
    made = stages.stage(name)
    if not footage.footage_state(profile).ready:
        if not options.with_upstream:
            raise UserError(
                f"{name} needs the OOPS! folder {oops_root(profile)}, which is not filmed yet: run "
                f"python -m pipeline.footage{given} first, or add --with-upstream"
            )
        _film(profile)
    known = stages.shard_names(made, profile)
    wanted = known if options.shard is None else [parse_shard(options.shard, known, name)]
    failed = 0
    for shard in wanted:
        bar = _Bar(f"{name} {shard}")
        try:
            result = stages.run_stage_shard(
                name,
                shard,
                profile,
                build,
                force=options.force,
                with_upstream=options.with_upstream,
                progress=bar,
            )
        except stages.MissingUpstreamError as error:
            raise error.with_options(given) from None
        finally:
            bar.close()
        failed += result.manifest["counts"]["failed"]
        _print_shard(stages.build_dir(profile, build), made, shard, result)
    return SOME_FAILED if failed else DONE


def _given_options(options: argparse.Namespace) -> str:
    """The options that another command needs so as to mean the same build, e.g. ` --profile full --set seed=3`."""
    words = [] if options.profile == DEFAULT_PROFILE else ["--profile", options.profile]
    words += [] if options.build is None else ["--build", options.build]
    for override in options.overrides:
        words += ["--set", override]
    return "".join(f" {shlex.quote(word)}" for word in words)


def _print_shard(folder: Any, made: Any, shard: str, result: Any) -> None:
    from pipeline.core.store import Store

    counts, reasons = result.manifest["counts"], result.manifest["reasons"]
    state = f"built in {result.manifest['seconds']:.1f} s" if result.built else "up to date"
    why = f" ({', '.join(f'{reason} {count}' for reason, count in reasons.items())})" if reasons else ""
    print(
        f"{made.name} {shard}: {state}; in {counts['in']} = kept {counts['kept']} + rejected {counts['rejected']} "
        f"+ failed {counts['failed']}{why}"
    )
    store = Store(folder)
    columns = [name for name, info in made.writes.model_fields.items() if info.annotation is not bytes]
    examples = store.kept_ids(made.name, shard)[:3]
    for row in store.rows(made.name, shard, columns, examples).values():
        text = ", ".join(f"{name}: {value}" for name, value in row.items() if name != "id" and value is not None)
        print(f"  {row['id']}  {text[:160]}{'...' if len(text) > 160 else ''}")


class _Bar:
    """A bar with ETA on a terminal, nothing elsewhere."""

    def __init__(self, name: str) -> None:
        self._name, self._bar = name, cast(Any, None)

    def __call__(self, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=self._name, unit=" records")
        self._bar.total, self._bar.n = total, done
        self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _film(profile: Profile) -> None:
    from pipeline import footage

    footage.prepare(profile)
    for task in range(footage.footage_state(profile).tasks):
        footage.film_task(profile, task, _Bar(f"footage {task}"))
    footage.finish(profile)


def footage_main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.footage`."""
    use_one_thread()
    parser = common_parser("pipeline.footage", "Film the simulator's OOPS! folder (where no real one is named).")
    options = parser.parse_args(argv)

    def run() -> int:
        from pipeline import footage

        profile, _ = profile_and_build(options)
        state = footage.footage_state(profile)
        if not state.simulated:
            print(f"nothing to film: the profile reads {oops_root(profile)}")
        elif state.ready:
            print(f"up to date: {oops_root(profile)}")
        else:
            _film(profile)
            print(f"filmed {oops_root(profile)}")
        return DONE

    return _guarded(run)


def build_main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.build`."""
    use_one_thread()
    parser = common_parser("pipeline.build", "Build the whole dataset, stage after stage, resuming what is there.")
    parser.add_argument("--force", action="store_true", help="build every shard again")
    parser.add_argument("--dry-run", action="store_true", help="say what would run and what is missing; build nothing")
    options = parser.parse_args(argv)
    return _guarded(lambda: _run_build(options))


def _run_build(options: argparse.Namespace) -> int:
    from pipeline import build, preflight, report

    profile, name = profile_and_build(options)
    missing = preflight.missing_pieces(profile)
    if options.dry_run:
        _print_plan(profile, name)
        for piece in missing:
            print(f"missing: {piece}")
        return WRONG if missing else DONE
    if missing:
        raise UserError(preflight.explain(options.profile, missing))
    start = time.monotonic()
    built = build.build_all(profile, name, options.force)
    sheets = report.write_sheets(profile, name)
    summary = report.summary(profile, name)
    print(report.format_summary(summary))
    print()
    print(f"{'built' if built else 'up to date'} in {time.monotonic() - start:.0f} s: {profile.out}")
    for sheet in sheets:
        print(f"look at   {sheet}")
    print(f"load it   python -c \"import datasets; print(datasets.load_dataset('{profile.out}'))\"")
    print("go on     python -m pipeline lists the stages; python -m pipeline.decompose --shard 3 runs one")
    return SOME_FAILED if summary.failed else DONE


def _print_plan(profile: Profile, name: str) -> None:
    from pipeline import footage, stages

    state = footage.footage_state(profile)
    if state.simulated:
        print(f"footage      {'up to date' if state.ready else 'to be filmed'}: {oops_root(profile)}")
    if not state.ready or oops_root(profile).is_dir():
        for made in stages.all_stages():
            names = stages.shard_names(made, profile)
            print(f"{made.name:<12} {len(names):>3} shards  {made.summary}")
    print(f"work in {stages.build_dir(profile, name)}, dataset in {profile.out}, {profile.workers} workers")


def list_stages(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline`: the stages with what each reads and writes."""
    from pipeline import stages

    if unknown := [word for word in (sys.argv[1:] if argv is None else argv) if word not in ("-h", "--help")]:
        names = ", ".join(stages.STAGE_NAMES)
        print(
            f"error: no '{unknown[0]}' here: a stage is run as python -m pipeline.STAGE, one of {names}",
            file=sys.stderr,
        )
        return WRONG
    print("The stages of a build, each run as python -m pipeline.<stage> [--shard N] (--help says more):\n")
    for number, made in enumerate(stages.all_stages(), start=1):
        reads = "; ".join(f"{source}: {', '.join(columns)}" for source, columns in made.reads.items())
        shards = " and ".join(made.shard_kinds) or "one for the whole build"
        print(f"{number:>2} {made.name:<11} {made.summary}")
        print(f"   {'':<11} reads   {reads}")
        print(f"   {'':<11} writes  {', '.join(made.writes.model_fields)}")
        print(f"   {'':<11} shards  {shards}\n")
    print("All of them: python -m pipeline.build. Profiles: " + ", ".join(profile_names()))
    return DONE
