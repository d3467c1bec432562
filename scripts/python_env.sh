#!/usr/bin/env bash
# Makes an environment of Python in .cache/python, with which the module `kvlathe` is built and tested (docs/python.md):
#   scripts/python_env.sh            what the build and the smoke test need
#   scripts/python_env.sh --tests    what all tests of the module need, too: pandas, tqdm, mypy, notebooks
#   scripts/python_env.sh --guests   and what the module is a guest of: torch, transformers, LMCache,
#                                    lm-evaluation-harness (about 6 GB on disk)
# What is already there is not fetched again. PYTHON names another interpreter than python3, of 3.11 or later.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=.cache/python
packages=(nanobind==3.1.0 numpy)
# Installed without what they require.
alone=()
case ${1:-} in
  '') ;;
  --tests) packages+=(pandas tqdm mypy nbclient nbformat ipykernel matplotlib) ;;
  --guests)
    packages+=(pandas tqdm mypy nbclient nbformat ipykernel matplotlib torch==2.15.0 transformers==5.24.0 lm-eval==0.4.13)
    # LMCache requires what only a machine with a GPU or a cloud needs (cupy, cuda-python, awscrt, Bigtable), and an older
    # NumPy. Without those it installs and runs anywhere; here is what its serializers and file backends import.
    alone+=(lmcache==0.5.6)
    packages+=(aiofile aiofiles aiohttp cachetools cryptography msgspec numba opentelemetry-api opentelemetry-sdk
      opentelemetry-exporter-prometheus 'prometheus_client<=0.24.1' psutil py-cpuinfo pyzmq requests sortedcontainers)
    ;;
  *)
    echo "scripts/python_env.sh: unknown argument $1; there are --tests and --guests" >&2
    exit 2
    ;;
esac

# The list that was asked for is kept, so that a second run asks nobody.
list="${packages[*]}${alone[*]:+ ${alone[*]}}"
if [ -x "$folder/bin/python" ] && grep -qxF "$list" "$folder/installed" 2>/dev/null; then
  exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
pip() { "$folder/bin/python" -m pip install --disable-pip-version-check "$@"; }
if ! { { [ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"; } && pip "${packages[@]}" &&
  { [ ${#alone[@]} -eq 0 ] || pip --no-deps "${alone[@]}"; }; } >"$log" 2>&1 </dev/null; then
  tail -n 5 "$log" >&2
  echo "scripts/python_env.sh: the environment could not be made (its last lines are above); it needs python3-venv and a" \
    "package index" >&2
  exit 1
fi
echo "$list" >>"$folder/installed"
