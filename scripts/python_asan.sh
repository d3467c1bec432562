#!/usr/bin/env bash
# Runs tests of the Python module under AddressSanitizer and UndefinedBehaviorSanitizer (docs/python/packages.md):
#   scripts/python_asan.sh [TEST...]     without names: the hostile calls, tests/python/hostile_test.py
# The interpreter is not built with them, so their libraries are loaded before it; what it leaves behind when it ends is no
# leak of ours, so leaks are not looked for.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/python_env.sh
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
# As scripts/test.sh has it, so that what either has compiled serves both.
cmake --preset asan -DKVLATHE_UNITY_LIBRARIES=ON -DKVLATHE_UNITY_TESTS=ON -DKVLATHE_SECOND_RING=OFF -DKVLATHE_LAB=OFF \
  -DKVLATHE_GRAMMAR=OFF -DKVLATHE_MPI=OFF -DKVLATHE_PYTHON=ON >build/asan-configure.log 2>&1 ||
  { tail -n 30 build/asan-configure.log >&2; exit 1; }
cmake --build --preset asan --target kvlathe_package

tests=("$@")
[ $# -gt 0 ] || tests=(hostile_test)
preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)"
for test in "${tests[@]}"; do
  LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$PWD/build/asan/python \
    .cache/python/bin/python -B "tests/python/$test.py" build/asan/bin/kvlathe models/lathe-nano
done
