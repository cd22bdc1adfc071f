"""`python -m pipeline.<stage>` and `python -m pipeline`: one stage by hand, and the list of stages."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from pipeline import footage, stages
from pipeline.cli import DONE, SOME_FAILED, WRONG, Bar, common_parser, guarded, profile_and_build
from pipeline.core.errors import UserError
from pipeline.core.profile import DEFAULT_PROFILE, oops_root, profile_names
from pipeline.core.stage import parse_shard
from pipeline.core.workers import use_one_thread


def stage_main(name: str, argv: Sequence[str] | None = None, epilog: str | None = None) -> int:
    """`python -m pipeline.<stage>`. epilog: the last words of its help."""
    use_one_thread()
    made = stages.stage(name)
    parser = common_parser(f"pipeline.{name}", f"Stage {name}: {made.summary}.")
    parser.epilog = epilog
    parser.add_argument("--shard", metavar="N", help="3 is train-003, test-0 is test-000 (default: all shards)")
    parser.add_argument("--force", action="store_true", help="build again even where nothing has changed")
    parser.add_argument("--with-upstream", action="store_true", help="first build what this stage reads")
    options = parser.parse_args(argv)
    return guarded(lambda: _run_stage(name, options))


def _run_stage(name: str, options: argparse.Namespace) -> int:
    profile, build = profile_and_build(options)
    given = _given_options(options)
    made = stages.stage(name)
    if not footage.footage_state(profile).ready:
        if not options.with_upstream:
            raise UserError(
                f"{name} needs the OOPS! folder {oops_root(profile)}, which is not filmed yet: run "
                f"python -m pipeline.footage{given} first, or add --with-upstream"
            )
        footage.film_all(profile)
    known = stages.shard_names(made, profile)
    wanted = known if options.shard is None else [parse_shard(options.shard, known, name)]
    failed = 0
    for shard in wanted:
        bar = Bar(f"{name} {shard}")
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


def list_stages(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline`: the stages with what each reads and writes."""
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
