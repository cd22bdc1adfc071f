# The embedded engines, the Prefect server and the CPU worker: docker build -f docker/cpu.Dockerfile -t pab-rebuild:cpu .
# Every step is a script of this folder; tests/docker runs them.
FROM python:3.11.14-slim-bookworm
WORKDIR /app
ENV PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
COPY docker/system-packages.sh docker/
RUN sh docker/system-packages.sh cpu
COPY docker/make-user.sh docker/
RUN sh docker/make-user.sh
COPY docker/install.sh docker/requirements.lock docker/
RUN sh docker/install.sh python docker/requirements.lock
COPY . .
RUN python docker/check_image.py docker/requirements.lock
USER 5000:5000
ENV HOME=/home/pab USER=pab HF_HOME=/models HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 DO_NOT_TRACK=1
CMD ["python", "-m", "pipeline.build", "--profile", "demo"]
