"""A physics simulator that films people who do something and then fail.

It stands in for a footage download (`footage`) and for a text-to-image network (`text_to_image`) on a machine that has
neither. Bodies fall by PyBullet's physics and move by the motion capture in pybullet_data; a small renderer of its own
(`render`) films closed bodies in front of furnished scenes. The truth of every picture is written beside it, for
measuring the stages; no stage reads it.
"""

REVISION = "2"
"""To be raised whenever the same plan or request gives another picture."""
