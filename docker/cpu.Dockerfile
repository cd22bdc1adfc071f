# The embedded engines on a CPU: docker build -f docker/cpu.Dockerfile -t pab-rebuild:cpu .
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends libgl1 libglib2.0-0 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY docker/install.sh docker/requirements.lock docker/
RUN sh docker/install.sh python docker/requirements.lock
COPY . .
ENV OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
CMD ["python", "-m", "pipeline.build", "--profile", "demo"]
