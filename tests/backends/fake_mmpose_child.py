"""Stands in for the interpreter of mmpose's environment: the real server over an engine that does what images say.

Called `broken` it does not start, called `deaf` it never reads. Else the first pixel's red is the order: 1 end the
process, 2 never answer, 3 raise, 4 answer with something that is no message, 5 crash once (a file beside the weights
remembers). Any other image gets, for each box, 17 joints at the box's corner with the score red / 100.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path

import numpy as np

spec = importlib.util.spec_from_file_location("mmpose_child", sys.argv[2])
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)

MARK = Path(sys.argv[5]).with_suffix(".crashed")


class Engine:
    about = {"mmpose": os.environ.get("FAKE_MMPOSE", "1.3.2")}  # noqa: RUF012

    def estimate(self, images, boxes):
        people = []
        for image, own in zip(images, boxes, strict=True):
            order = int(image[0, 0, 0])
            if order == 1 or (order == 5 and not MARK.exists()):
                MARK.touch()
                print("torn to pieces", file=sys.stderr, flush=True)
                os._exit(7)
            if order == 2:
                time.sleep(60)
            if order == 3:
                raise ValueError("nothing to see")
            if order == 4:
                os.write(ANSWERED.fileno(), b"\xff" * 64)
            people += [[[box[0], box[1], order / 100]] * 17 for box in own]
        return np.array(people, np.float32).reshape(-1, 17, 3)


ANSWERED = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
print("a library greets")
if sys.argv[4] == "broken":
    sys.exit("no such configuration")
child.end_with_parent()
if sys.argv[4] == "deaf":
    ANSWERED.write(child.packed({"ready": Engine.about}))
    ANSWERED.flush()
    time.sleep(60)
child.serve(Engine(), sys.stdin.buffer, ANSWERED)
