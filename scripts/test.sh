#!/usr/bin/env bash
# Installs packages, builds and tests with the release preset, then under AddressSanitizer and
# UndefinedBehaviorSanitizer (docs/testing.md):
#   scripts/test.sh        the first ring, what every change must pass
#   scripts/test.sh --all  the second ring too, run before a larger piece of work is finished
# At the end stands a table of what ran and how long it took. The last line is
#   N passed, N failed, N skipped
# in cases of GoogleTest and other tests (a build that fails counts as one failed test); the exit status is 0
# only if none failed.
set -uo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  # Libtorch and the lab (lab/README.md) take a fifth of the time, so the first ring goes without them.
  '') ring=first leaves_out=(-LE second) all=OFF packages=(--with-deploy --with-python) ;;
  # Chromium takes 400 MB, for one screenshot of the report; without it that part of a test is left out.
  --all) ring=all leaves_out=() all=ON packages=(--with-trainer --with-deploy --with-browser --with-python-tests) ;;
  *)
    echo "scripts/test.sh: unknown argument $1; there is --all" >&2
    exit 2
    ;;
esac

scripts/bootstrap.sh "${packages[@]}" || exit 1
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi

options=(-DKVLATHE_UNITY_TESTS=ON -DKVLATHE_SECOND_RING="$all" -DKVLATHE_LAB="$all"
  -DKVLATHE_GRAMMAR="${KVLATHE_GRAMMAR:-ON}")
# A tenth of the time of a build, for the lines of a stack that only a debugger or a developer's own
# run needs: sanitizers name functions without it.
[ -z "${CI:-}" ] || options+=(-DKVLATHE_DEBUG_INFO=OFF)

# What scripts/test_summary.py reads: PRESET,BUILD SECONDS,BUILD STATUS,TEST SECONDS,TEST STATUS
runs=()

# run_preset PRESET [OPTION OF CMAKE...]
# Builds what the build preset $builds names, if set, and runs the tests with the label $runs_only, if set, $jobs at a time, if
# set.
run_preset() {
  local preset=$1 start=$SECONDS status=0 build_seconds
  shift
  rm -rf "build/$preset/test-results" "build/$preset/test-results.xml"
  { cmake --preset "$preset" "${options[@]}" "$@" >"build/$preset-configure.log" 2>&1 ||
    { tail -n 30 "build/$preset-configure.log"; false; }; } &&
    cmake --build --preset "${builds:-$preset}" || status=1
  build_seconds=$((SECONDS - start))
  if [ "$status" -ne 0 ]; then
    echo "scripts/test.sh: the $preset build failed"
    runs+=("$preset,$build_seconds,1,0,1")
    return
  fi
  start=$SECONDS
  ctest --preset "$preset" --show-only=json-v1 >"build/$preset/tests.json"  # which has the labels
  # ${leaves_out[@]+...}: an empty array counts as unset in older shells.
  ctest --preset "$preset" -j "${jobs:-$(nproc)}" --no-tests=error --output-junit "$PWD/build/$preset/test-results.xml" \
    ${leaves_out[@]+"${leaves_out[@]}"} ${runs_only:+-L "$runs_only"} || status=1
  runs+=("$preset,$build_seconds,0,$((SECONDS - start)),$status")
}

mkdir -p build
# Libraries that are one source each take a quarter of the time. Only the second ring sees whether a source
# includes what it needs.
[ "$ring" = all ] && together=OFF || together=ON
python=OFF
[ ! -x .cache/python/bin/python ] || python=ON
# Most tests of models have two threads, which wait for each other awake: of twice as many on the same processors each takes
# ten times as long. Under the sanitizers there are none of these.
jobs=$((($(nproc) + 1) / 2)) run_preset release -DKVLATHE_UNITY_LIBRARIES="$together" -DKVLATHE_PYTHON="$python"
# Kernels of one GPU and the host code around them, where a toolkit is: a change must compile there too, and its kernels may
# not become worse unseen. Nothing here needs a GPU.
if command -v nvcc >/dev/null || [ -x build/cuda_toolkit/bin/nvcc ]; then
  command -v nvdisasm >/dev/null || scripts/fetch_cuda.sh --disassembler ||
    echo "scripts/test.sh: no nvdisasm: instructions of kernels are not counted" >&2
  builds=cuda-check runs_only=sass run_preset cuda -DKVLATHE_CUDA_ARCHITECTURES=90a -DKVLATHE_UNITY_LIBRARIES=ON
else
  echo "scripts/test.sh: no nvcc: kernels are not compiled for GPUs (scripts/bootstrap.sh --with-cuda)"
fi
# XGrammar takes minutes to compile for the sanitizers. Without it the first ring has tests that grammars are refused.
[ "$ring" = all ] || options+=(-DKVLATHE_GRAMMAR=OFF)
# OpenMPI is not instrumented. Without it there are tests of what such a build refuses.
options+=(-DKVLATHE_MPI=OFF)
run_preset asan -DKVLATHE_UNITY_LIBRARIES=ON -DKVLATHE_PYTHON=OFF
python3 scripts/test_summary.py "$ring" "${runs[@]}"
