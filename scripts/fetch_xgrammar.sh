#!/usr/bin/env bash
# Fetches XGrammar, the library of grammars behind structured output (docs/decisions/xgrammar.md), as a source
# package into build/xgrammar, where the next `cmake --preset` finds it:
#   scripts/fetch_xgrammar.sh
# The package is checked by its SHA-256. What is already there is not fetched again.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.2.8
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
folder=build/xgrammar

fail() {
  echo "scripts/fetch_xgrammar.sh: $1" >&2
  exit 1
}

if [ -f "$folder/sha256" ] && [ "$(cat "$folder/sha256")" = "$sha256" ]; then
  exit 0
fi
without="to build without it: KVLATHE_GRAMMAR=OFF in the environment, or cmake -DKVLATHE_GRAMMAR=OFF"
python3 -m pip --version >/dev/null 2>&1 || fail "pip is not there; scripts/bootstrap.sh installs it ($without)"
mkdir -p build
work=$(mktemp -d build/xgrammar.XXXXXX)
trap 'rm -rf "$work"' EXIT
echo "xgrammar==$version --hash=sha256:$sha256" >"$work/requirements"
# pip reads a source package's metadata by its build system, which it sets up for that in a folder of its own.
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary xgrammar --require-hashes \
  --retries 1 --timeout 20 --dest "$work" --requirement "$work/requirements" >"$work/log" 2>&1 </dev/null; then
  fail "XGrammar could not be fetched ($(grep -v '^$' "$work/log" | tail -n 1)); it needs pip and a package index; $without"
fi
echo "$sha256  $work/xgrammar-$version.tar.gz" | sha256sum --check --status ||
  fail "xgrammar-$version.tar.gz is not the file it should be"
tar -xzf "$work/xgrammar-$version.tar.gz" -C "$work"
echo "$sha256" >"$work/xgrammar-$version/sha256"
rm -rf "$folder"
mv "$work/xgrammar-$version" "$folder"
echo "$folder: XGrammar $version"
