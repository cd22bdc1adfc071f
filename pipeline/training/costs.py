"""What a training run cost, in a file of its own beside its settings: never part of what a resumed run must repeat."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pipeline.core.errors import UserError
from pipeline.core.store import write_atomically

COSTS = "costs.json"


@dataclass
class Costs:
    """parameters: of the network. start: what was pretrained, in words. test: digest of the test split.

    seconds: of training (pictures, steps, validation, saving), all processes one after the other that a stopped run
    took; up to its last saved state for one that was killed. peak_memory, peak_gpu_memory: MiB, the largest of any
    process that trained (resident set; allocated by torch), evaluation not counted. threads: of torch, every number
    that steps were done with. query_milliseconds: by weights (`judge` of pipeline.evaluate_weights says of what).
    finished: trained and evaluated.
    """

    parameters: int = 0
    start: str = ""
    test: str = ""
    device: str = ""
    threads: list[int] = field(default_factory=list)
    seconds: float = 0.0
    peak_memory: float | None = None
    peak_gpu_memory: float | None = None
    query_milliseconds: dict[str, float] = field(default_factory=dict)
    finished: bool = False


def read_costs(folder: Path) -> Costs:
    """The costs that a run's folder tells; empty where it tells none. Raises UserError where the file is damaged."""
    path = folder / COSTS
    if not path.is_file():
        return Costs()
    try:
        found = json.loads(path.read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError("holds no values by name")
        return Costs(**{each.name: found[each.name] for each in fields(Costs) if each.name in found})
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}): delete it; the figures of the run stay") from None


def write_costs(folder: Path, costs: Costs) -> None:
    """Write the costs, whole or not at all."""
    told: dict[str, Any] = asdict(costs)
    write_atomically(folder / COSTS, (json.dumps(told, indent=1) + "\n").encode())


def peak_memory() -> float | None:
    """The largest resident set of this process so far, MiB; None where the system does not say.

    Linux is asked for this program's own peak: getrusage counts the one that started it as well.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text("utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
