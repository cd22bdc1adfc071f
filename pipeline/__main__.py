"""`python -m pipeline`: lists the stages."""

from pipeline.run_stage import list_stages

raise SystemExit(list_stages())
