#!/usr/bin/env bash
# Fetches the toolkit of CUDA 13.0 from NVIDIA's packages on PyPI, for builds with -DKVLATHE_CUDA=ON (docs/cuda.md), into
# build/cuda_toolkit:
#   scripts/fetch_cuda.sh                 compiler, runtime, headers and cuBLASLt (about 850 MB on disk)
#   scripts/fetch_cuda.sh --kernels       without cuBLASLt: enough for kernels and the gate of their instructions
#   scripts/fetch_cuda.sh --disassembler  nvdisasm alone, for the gate where the system has a toolkit without it
# They are checked by their SHA-256; their licence is NVIDIA's, and they go into no package of kvlathe. What is already there
# is not fetched again.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=build/cuda_toolkit
disassembler="nvidia-cuda-nvdisasm==13.2.86 --hash=sha256:53606e719ecae07a2335f95902d5a1393a0cc1c317499ee7ffcf628a44385f2c"
kernels="nvidia-cuda-nvcc==13.0.88 --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03
nvidia-nvvm==13.0.88 --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0
nvidia-cuda-crt==13.0.88 --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-cccl==13.0.85 --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
$disassembler"
products="nvidia-cublas==13.0.2.14 --hash=sha256:0cf238ffdbe46c00cb9aa98e7bca745c223a5ca5a53e686ac8b3e5a08fe80d6c"

fail() {
  echo "scripts/fetch_cuda.sh: $1" >&2
  exit 1
}

case ${1:-} in
  '') requirements="$kernels"$'\n'"$products" ;;
  --kernels) requirements=$kernels ;;
  --disassembler) requirements=$disassembler ;;
  *) fail "unknown argument $1; there are --kernels and --disassembler" ;;
esac

missing=$(grep -vxFf <(cat "$folder/state" 2>/dev/null || true) <<<"$requirements" || true)
[ -n "$missing" ] || exit 0

python3 -m pip --version >/dev/null 2>&1 || fail "pip is not there; scripts/bootstrap.sh installs it"
mkdir -p "$folder"
work=$(mktemp -d build/cuda_toolkit.XXXXXX)
trap 'rm -rf "$work"' EXIT
echo "$missing" >"$work/requirements"
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
  --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform any \
  --dest "$work" --requirement "$work/requirements" >"$work/log" 2>&1 </dev/null; then
  fail "CUDA could not be fetched ($(grep -v '^$' "$work/log" | tail -n 1)); it needs pip and a package index"
fi
for package in "$work"/*.whl; do
  python3 -m zipfile -e "$package" "$work/unpacked"
done
# What is linked with has one name more than packages bring.
for library in "$work"/unpacked/nvidia/cu13/lib/lib*.so.*; do
  [ ! -f "$library" ] || ln -sf "$(basename "$library")" "${library%%.so.*}.so"
done
find "$work/unpacked/nvidia/cu13" \( -path '*/bin/*' -o -name cicc \) -type f -exec chmod +x {} +
cp -a "$work/unpacked/nvidia/cu13/." "$folder/"
echo "$missing" >>"$folder/state"
echo "$folder: $(sed 's/ .*//' <<<"$missing" | tr '\n' ' ')"
