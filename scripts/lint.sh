#!/usr/bin/env bash
# Checks format, includes and clang-tidy:
#   scripts/lint.sh            the files that differ from main (or from HEAD, on main)
#   scripts/lint.sh FILE...    these files
#   scripts/lint.sh --all      every tracked source
#   scripts/lint.sh --format   only the format, of every tracked source
# clang-tidy needs a configured build: BUILD_DIR, by default build/release.
set -euo pipefail
cd "$(dirname "$0")/.."

# In an archive without git history, the tree itself is the list.
list_sources() {
  git ls-files -- '*.h' '*.cc' '*.cu' '*.cuh' 2>/dev/null ||
    find apps examples fuzz include lab src tests -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh'
}
check_format() { list_sources | xargs clang-format-14 --dry-run -Werror; }

case ${1:-} in
  --format) check_format; exit ;;
  --all) mapfile -t files < <(list_sources) ;;
  '')
    base=$(git merge-base HEAD main 2>/dev/null || echo HEAD)
    mapfile -t files < <(
      { git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } |
        grep -E '\.(h|cc|cu|cuh)$' | sort -u)
    ;;
  *) files=("$@") ;;
esac

status=0
check_format || status=1
python3 scripts/check_includes.py || status=1

build=${BUILD_DIR:-build/release}
if [ ! -f "$build/compile_commands.json" ]; then
  echo "scripts/lint.sh: $build is not configured; run cmake --preset release" >&2
  exit 2
fi
# Headers are checked through the sources that include them.
sources=()
for file in ${files[@]+"${files[@]}"}; do
  if [[ $file == *.cc ]] && grep -qF "/$file\"" "$build/compile_commands.json"; then
    sources+=("$file")
  fi
done
if [ ${#sources[@]} -gt 0 ]; then
  printf '%s\0' "${sources[@]}" |
    xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p "$build" --quiet || status=1
fi
echo "scripts/lint.sh: ${#sources[@]} sources through clang-tidy, exit $status"
exit $status
