#!/usr/bin/env bash
# Fetches NCCL and the CUDA runtime (166 MB), for builds with -DKVLATHE_NCCL=ON, into build/nccl, and with
# --check compiles what needs them (src/comm/nccl_communicator.h), which takes no GPU:
#   scripts/fetch_nccl.sh
#   scripts/fetch_nccl.sh --check
# NVIDIA's packages on PyPI are checked by their SHA-256; their licence is NVIDIA's, and they go into no package of
# kvlathe. What is already there is not fetched again.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements="nvidia-nccl-cu12==2.19.3 --hash=sha256:a9734707a2c96443331c1e48c717024aa6678a0e2a4cb66b2c364d18cee6b48d
nvidia-cuda-runtime-cu12==12.1.105 --hash=sha256:6e258468ddf5796e25f1dc591a31029fa317d97a0a94ed93468fc86301d61e40"
folder=build/nccl

fail() {
  echo "scripts/fetch_nccl.sh: $1" >&2
  exit 1
}

check() {
  cmake --preset release -B build/nccl-check -DKVLATHE_NCCL=ON >build/nccl-check.log || fail "cmake failed (build/nccl-check.log)"
  cmake --build build/nccl-check --target kvlathe_comm_nccl
}

fetch() {
  python3 -m pip --version >/dev/null 2>&1 || fail "pip is not there; scripts/bootstrap.sh installs it"
  mkdir -p build
  work=$(mktemp -d build/nccl.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  echo "$requirements" >"$work/requirements"
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    --platform manylinux1_x86_64 --dest "$work" --requirement "$work/requirements" >"$work/log" 2>&1 </dev/null; then
    fail "NCCL could not be fetched ($(grep -v '^$' "$work/log" | tail -n 1)); it needs pip and a package index"
  fi
  mkdir "$work/unpacked"
  for package in "$work"/*.whl; do
    python3 -m zipfile -e "$package" "$work/unpacked"
  done
  echo "$requirements" >"$work/unpacked/nvidia/state"
  rm -rf "$folder"
  mv "$work/unpacked/nvidia" "$folder"
  echo "$folder: NCCL 2.19.3 and the CUDA runtime 12.1"
}

[ -f "$folder/state" ] && [ "$(cat "$folder/state")" = "$requirements" ] || fetch
case ${1:-} in
  '') ;;
  --check) check ;;
  *) fail "unknown argument $1; there is --check" ;;
esac
