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
case ${1:-} in
  '') ;;
  --tests) packages+=(pandas tqdm mypy nbclient nbformat ipykernel matplotlib) ;;
  --guests) packages+=(pandas tqdm mypy nbclient nbformat ipykernel matplotlib torch transformers lmcache lm-eval) ;;
  *)
    echo "scripts/python_env.sh: unknown argument $1; there are --tests and --guests" >&2
    exit 2
    ;;
esac

# The list that was asked for is kept, so that a second run asks nobody.
if [ -x "$folder/bin/python" ] && grep -qxF "${packages[*]}" "$folder/installed" 2>/dev/null; then
  exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { { [ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"; } &&
  "$folder/bin/python" -m pip install --disable-pip-version-check "${packages[@]}"; } >"$log" 2>&1 </dev/null; then
  tail -n 5 "$log" >&2
  echo "scripts/python_env.sh: the environment could not be made (its last lines are above); it needs python3-venv and a" \
    "package index" >&2
  exit 1
fi
echo "${packages[*]}" >>"$folder/installed"
