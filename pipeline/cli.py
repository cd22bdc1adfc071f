"""What the command lines share: options, exit codes, errors in one line, a bar.

Exit codes: 0 done, 1 done but some records failed, 2 the input or the command is wrong (one line says what and where).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, cast

from pipeline.core.errors import UserError
from pipeline.core.profile import DEFAULT_PROFILE, Profile, load_profile, profile_names

DONE, SOME_FAILED, WRONG = 0, 1, 2


def guarded(run: Callable[[], int]) -> int:
    """Run a command; a UserError becomes one line and exit code 2, Ctrl-C a line and 130."""
    try:
        return run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    except BrokenPipeError:
        # Whoever read the output (head, less) has seen enough; what is still in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
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


class Bar:
    """A bar with ETA on a terminal, nothing elsewhere."""

    def __init__(self, name: str, unit: str = "records") -> None:
        self._name, self._unit, self._bar = name, unit, cast(Any, None)

    def __call__(self, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=self._name, unit=f" {self._unit}")
        self._bar.total, self._bar.n = total, done
        self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
