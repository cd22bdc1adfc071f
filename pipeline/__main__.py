"""`python -m pipeline`: lists the stages."""

from pipeline.cli import list_stages

raise SystemExit(list_stages())
