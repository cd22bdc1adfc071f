"""Whether a service of the compose file works: exit code 0, or 1 with a line that says why not.

python docker/health.py server                       the Prefect server answers, and reaches its database
python docker/health.py worker                       the worker has asked for work of late
python docker/health.py vllm --model NAME            the vLLM server answers, and serves this model

Runs inside the service's own container, also in one that holds nothing of this project: the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

ADDRESSES = {"server": "http://127.0.0.1:4200", "worker": "http://127.0.0.1:8080", "vllm": "http://127.0.0.1:8000"}
_LONGEST_ANSWER = 1_000_000
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy's answer would not be the service's


class UnhealthyError(Exception):
    """The service does not work; the text says what was seen."""


def answer(url: str, seconds: float) -> bytes:
    """The body of a 200 answer. Raises UnhealthyError for any other, and where none comes in time."""
    try:
        with _opener.open(url, timeout=seconds) as reply:
            if reply.status != 200:
                raise UnhealthyError(f"{url} answers {reply.status}")
            return reply.read(_LONGEST_ANSWER)
    except urllib.error.HTTPError as error:
        raise UnhealthyError(f"{url} answers {error.code}: {error.read(200).decode('utf-8', 'replace')}") from None
    except (OSError, ValueError) as error:  # refused, reset, late, not HTTP
        raise UnhealthyError(f"{url} does not answer: {error}") from None


def check_server(address: str, seconds: float) -> None:
    """Raises UnhealthyError unless the server can serve: /health alone says nothing of the database."""
    answer(f"{address}/api/ready", seconds)


def check_worker(address: str, seconds: float) -> None:
    """Raises UnhealthyError unless the worker has polled its pool within the time that Prefect gives it."""
    answer(f"{address}/health", seconds)


def check_vllm(address: str, seconds: float, model: str) -> None:
    """Raises UnhealthyError unless the engine is alive and the model is among those it serves."""
    answer(f"{address}/health", seconds)
    served = _model_names(answer(f"{address}/v1/models", seconds))
    if model not in served:
        raise UnhealthyError(f"{address} serves {', '.join(served) or 'no model'}, not {model}")


def _model_names(body: bytes) -> list[str]:
    try:
        listed: Any = json.loads(body)
        return [str(entry["id"]) for entry in listed["data"]]
    except (ValueError, KeyError, TypeError):
        raise UnhealthyError("/v1/models is no list of models") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 healthy, 1 not, 2 wrong command."""
    parser = argparse.ArgumentParser(
        prog="python docker/health.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("service", choices=ADDRESSES)
    parser.add_argument("--address", help="scheme, host and port (default: the service's own on loopback)")
    parser.add_argument("--model", help="vllm: the model that must be served")
    parser.add_argument("--seconds", type=float, default=4, help="how long an answer may take (default: 4)")
    options = parser.parse_args(argv)
    address = (options.address or ADDRESSES[options.service]).rstrip("/")
    if (options.service == "vllm") != (options.model is not None):
        parser.error("--model goes with vllm, and vllm with --model")
    try:
        if options.service == "server":
            check_server(address, options.seconds)
        elif options.service == "worker":
            check_worker(address, options.seconds)
        else:
            check_vllm(address, options.seconds, options.model)
    except UnhealthyError as error:
        print(f"{options.service}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
