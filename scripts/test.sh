#!/usr/bin/env bash
# Installs packages, builds and tests: everything with the release preset, then all but the slow tests
# under AddressSanitizer and UndefinedBehaviorSanitizer. The last line is
#   N passed, N failed, N skipped
# (a build that fails counts as one failed test); the exit status is 0 only if none failed.
set -uo pipefail
cd "$(dirname "$0")/.."

scripts/bootstrap.sh --with-trainer || exit 1
# 400 MB for one screenshot, fetched while the rest compiles: where a machine cannot have it, that test
# is skipped.
scripts/bootstrap.sh --with-trainer --with-browser || echo "scripts/test.sh: no Chromium; its test is skipped" &
browser=$!
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi

options=(-DKVLATHE_UNITY_TESTS=ON)
# A tenth of the time of a build, for the lines of a stack that only a debugger or a developer's own
# run needs: sanitizers name functions without it.
[ -z "${CI:-}" ] || options+=(-DKVLATHE_DEBUG_INFO=OFF)

n_passed=0 n_failed=0 n_skipped=0

# The value of attribute $2 of the <testsuite> in the JUnit file $1; 0 if there is no such file.
count_in() {
  local value
  value=$(sed -n "s/^[[:space:]]*$2=\"\([0-9]*\)\".*/\1/p" "$1" 2>/dev/null | head -n 1)
  echo "${value:-0}"
}

# run_preset PRESET [ctest options]
run_preset() {
  local preset=$1 results="build/$1/test-results.xml"
  shift
  if ! { cmake --preset "$preset" "${options[@]}" >"build/$preset-configure.log" 2>&1 ||
    { tail -n 30 "build/$preset-configure.log"; false; }; } ||
    ! cmake --build --preset "$preset"; then
    echo "scripts/test.sh: the $preset build failed"
    n_failed=$((n_failed + 1))
    return
  fi
  wait "$browser"
  rm -f "$results"
  ctest --preset "$preset" -j "$(nproc)" --no-tests=error --output-junit "$PWD/$results" "$@"
  local ctest_status=$?
  local n_tests n_not_ok n_left_out
  n_tests=$(count_in "$results" tests)
  n_not_ok=$(count_in "$results" failures)
  n_left_out=$(($(count_in "$results" skipped) + $(count_in "$results" disabled)))
  # ctest can also fail without a failed test, as when it finds none.
  n_passed=$((n_passed + n_tests - n_not_ok - n_left_out))
  if [ "$ctest_status" -ne 0 ] && [ "$n_not_ok" -eq 0 ]; then n_not_ok=1; fi
  n_failed=$((n_failed + n_not_ok))
  n_skipped=$((n_skipped + n_left_out))
}

mkdir -p build
run_preset release
run_preset asan -LE slow

echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
[ "$n_failed" -eq 0 ]
