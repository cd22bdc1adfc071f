# The paper's engines and the GPU worker: docker build -f docker/gpu.Dockerfile -t pab-rebuild:gpu .
# CUDA 13.0 as torch 2.14.0 is built for it; the devel image, because vLLM's kernels are partly compiled where they run.
# Python 3.11, with which everything here is tested, comes from its own image (Ubuntu 24.04 has 3.12).
# Every step is a script of this folder; tests/docker runs them as far as they go without a GPU.
FROM python:3.11.14-slim-bookworm AS python

FROM nvidia/cuda:13.0.2-devel-ubuntu24.04 AS base
WORKDIR /app
ENV PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
COPY --from=python /usr/local/ /usr/local/
COPY docker/system-packages.sh docker/
RUN sh docker/system-packages.sh gpu

FROM base AS mmpose
ENV PYTHON=python3.11
COPY docker/mmpose-env.sh docker/
RUN sh docker/mmpose-env.sh

FROM base
COPY docker/make-user.sh docker/
RUN sh docker/make-user.sh
COPY docker/install.sh docker/requirements-gpu.lock docker/
RUN sh docker/install.sh python3.11 docker/requirements-gpu.lock
COPY --from=mmpose /app/.venv-mmpose .venv-mmpose
COPY . .
RUN python3.11 docker/check_image.py docker/requirements-gpu.lock
USER 5000:5000
ENV HOME=/home/pab USER=pab HF_HOME=/models HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 DO_NOT_TRACK=1 VLLM_NO_USAGE_STATS=1
CMD ["python3.11", "-m", "pipeline.build", "--profile", "full"]
