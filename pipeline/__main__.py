"""`python -m pipeline`: lists the stages."""

from pipeline.cli import guarded
from pipeline.run_stage import list_stages

raise SystemExit(guarded(list_stages))
