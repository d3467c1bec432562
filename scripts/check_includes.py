#!/usr/bin/env python3
"""Checks that includes follow the folder graph.

A file may include headers of its own folder, and of the folders that its target lists in DEPS
(a test also those of its folder's library). Folders are ordered (ORDER below): neither an include
nor a DEPS entry may point upwards, so the folder graph has no cycle. Subfolders of a folder may not
hold each other either, not even through several (a folder and a subfolder of its own may; tests
may include sideways). No header may include itself through others, and every source must belong to
a target. Only what runs on the CPU may include headers of src/cpu (CPU_FILES below), and kernels of a GPU include little
else (OF_KERNELS below). Installed headers (include/) include each
other and no header of the tree. A source must also include, itself or through headers of the project, what it uses of the headers that are precompiled (PRECOMPILED below),
which the compiler would not miss.

usage: check_includes.py [ROOT]
"""
import re
import sys
from collections import namedtuple
from pathlib import Path

ORDER = [
    "base", "comm", "tensor", "io", "format", "machine", "analysis", "cpu/memory", "cpu/kernels", "cpu", "cuda", "runtime/machines", "tokenizer", "chat",
    "kv", "plan", "tuning", "model", "lockstep", "calibration/gradients", "calibration", "codec", "engine", "structured", "evaluation/tasks",
    "evaluation", "load_generation", "hub", "runtime", "server/http", "server/api", "server/tools", "server",
    "training/corpus", "training/tokenizer_training", "training/corpus_building", "training/retrofit", "lab", "apps", "tests",
]
KEYWORDS = {"NAME", "SRCS", "DEPS", "LIBS", "LABELS", "FLAGS", "CORPUS", "HEADERS", "APART", "SHARDS", "COST",
            "SECOND_RING", "SANITIZED_IN_SECOND_RING"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
ANY_INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)
# Headers that cmake/targets.cmake precompiles, and names by which their use is seen.
PRECOMPILED = {
    "algorithm": r"\bstd::(ranges::)?(any_of|all_of|clamp|copy|copy_n|count|equal|fill|fill_n|find|find_if|lower_bound"
                 r"|max|max_element|min|min_element|nth_element|reverse|sort|stable_sort|transform|upper_bound)\(",
    "cmath": r"\bstd::(abs|ceil|cos|exp|floor|fma|isfinite|isnan|log|lround|pow|round|sin|sqrt|tanh)\(",
    "functional": r"\bstd::function\b",
    "memory": r"\bstd::(make_shared|make_unique|shared_ptr|unique_ptr)\b",
    "span": r"\bstd::span\b",
    "string": r"\bstd::(string|to_string)\b",
    "vector": r"\bstd::vector\b",
    "fmt/format.h": r"\bfmt::",
    "nlohmann/json.hpp": r"\bnlohmann::",
}
PRECOMPILED = {header: re.compile(use) for header, use in PRECOMPILED.items()}
# What computes on the CPU, which gives addresses and knows instruction sets. Other code knows memory by ids and asks by
# verbs (src/machine); tests, which look at bytes, are free. Of the rest these may include it, and why.
CPU = "src/cpu/"
CPU_FILES = {
    "src/runtime/machines/machine_choice.cc": "chooses the machine",
    "src/evaluation/stored_rows.h": "reads sealed rows, to compare them with what they were",
    "src/evaluation/stored_rows.cc": "reads sealed rows, to compare them with what they were",
    "src/evaluation/bench/bench_attention.cc": "measures the kernels of the CPU",
    "src/evaluation/bench/bench_attention_case.h": "lays rows out itself",
    "src/evaluation/bench/bench_attention_case.cc": "lays rows out itself",
    "src/evaluation/bench/bench_model.cc": "fills caches with random rows",
    "src/calibration/joint_adder.cc": "multiplies sums of statistics",
    "src/calibration/weight_fisher.cc": "multiplies gradients",
    "src/calibration/moment_sums.h": "adds up statistics",
    "src/calibration/gradients/attention_gradient.cc": "computes gradients",
    "src/calibration/gradients/attention_gradient.h": "computes gradients",
    "src/calibration/gradients/output_head.h": "computes gradients",
    "src/calibration/gradients/layer_pass.h": "computes gradients",
    "src/calibration/gradients/products.cc": "computes gradients",
    "src/calibration/gradients/row_operators.h": "computes gradients",
}
# Kernels of a GPU are compiled by nvcc, and know bytes alone; the host code of src/cuda is free, and takes from the CPU what
# verbs without kernels run with.
CUDA = "src/cuda/"
KERNELS = ("src/cuda/kernels/", "src/cuda/simt/")
OF_KERNELS = KERNELS + ("src/cuda/emulated/", "src/format/", "src/tensor/", "src/base/",
                        "src/machine/object_id.h", "src/machine/weight_type.h", "src/machine/attention/plan.h")
COMMENT = re.compile(r"//[^\n]*")
CALL = re.compile(r"(\w+)\s*\(([^()]*)\)")

Target = namedtuple("Target", "name folder sources deps is_library")


def folder_of(path):
    """The folder, by its name in ORDER, of a path below src/ (or of one in lab/, apps/ or tests/)."""
    matches = [f for f in ORDER if path.startswith(f + "/")]
    return max(matches, key=len, default=None)


def without_root(path):
    return re.sub(r"^(src/|lab/(?=training/))", "", path)


def parse_arguments(text):
    """The words of a CMake call by keyword; those before the first keyword under ""."""
    groups, keyword = {"": []}, ""
    for word in text.split():
        if word in KEYWORDS:
            keyword = word
            groups.setdefault(keyword, [])
        else:
            groups[keyword].append(word)
    return groups


def targets_of(root, cmake_file):
    """Targets of one CMakeLists.txt: those of our functions and plain ones that link kvlathe_*."""
    text = re.sub(r"#[^\n]*", "", cmake_file.read_text())
    text = text.replace("${CMAKE_SOURCE_DIR}/", "//").replace("${CMAKE_CURRENT_SOURCE_DIR}/", "")
    text = re.sub(r"\$\{[^}]*\}", "", text)
    here = cmake_file.parent.relative_to(root).as_posix()
    folder = folder_of(without_root(here) + "/")

    def resolve(word):
        return word[2:] if word.startswith("//") else f"{here}/{word}"

    plain, targets = {}, []
    for function, body in CALL.findall(text):
        arguments = parse_arguments(body)
        words = arguments[""]
        if function.startswith("kvl_") and "NAME" in arguments:
            sources = [resolve(word) for word in arguments.get("SRCS", [])]
            is_library = function == "kvl_library"
            targets.append(
                Target(arguments["NAME"][0], folder, sources, arguments.get("DEPS", []), is_library))
        elif function in ("add_library", "add_executable", "nanobind_add_module") and words:
            sources = [resolve(word) for word in words[1:] if word.endswith(".cc")]
            name = words[0].removeprefix("kvlathe_")
            plain[words[0]] = Target(name, folder, sources, [], function == "add_library")
        elif function == "target_link_libraries" and words and words[0] in plain:
            deps = [w.removeprefix("kvlathe_") for w in words[1:] if w.startswith("kvlathe_")]
            plain[words[0]].deps.extend(d for d in deps if d not in ("flags", ""))
    return targets + list(plain.values())


def find_targets(root):
    targets = []
    for top in ("src", "lab", "apps", "tests", "fuzz"):
        for cmake_file in sorted((*(root / top).rglob("CMakeLists.txt"), *(root / top).rglob("*.cmake"))):
            targets += targets_of(root, cmake_file)
    return targets


def rank(folder):
    return ORDER.index(folder)


def check_deps(targets, folder_by_library):
    problems = []
    for target in targets:
        for dep in target.deps:
            folder = folder_by_library.get(dep)
            if folder is None:
                problems.append(f"target {target.name}: DEPS names '{dep}', which is no library")
            elif target.folder and rank(folder) > rank(target.folder):
                problems.append(f"target {target.name} of {target.folder}: DEPS points up to {dep}")
    return problems


def allowed_folders(targets, folder_by_library):
    """By source file and, for headers, by folder: the folders whose headers may be included."""
    by_folder, by_source = {}, {}
    for target in targets:
        deps = {folder_by_library[d] for d in target.deps if d in folder_by_library}
        if target.is_library:
            by_folder.setdefault(target.folder, set()).update(deps)
    for target in targets:
        deps = {folder_by_library[d] for d in target.deps if d in folder_by_library}
        for source in target.sources:
            folder = folder_of(without_root(source)) or target.folder
            allowed = deps | ({folder} if folder else set())
            if not target.is_library:
                allowed |= by_folder.get(folder, set())
            by_source.setdefault(source, set()).update(allowed)
    return by_folder, by_source


def includes_of(root, path):
    """Project headers that a file includes, as paths from the root."""
    for include in INCLUDE.findall((root / path).read_text()):
        beside = (Path(path).parent / include).as_posix()
        if folder_of(include):
            yield f"lab/{include}" if include.startswith("training/") else f"src/{include}"
        elif (root / beside).exists():
            yield beside
        elif (root / "apps" / include).exists():
            yield f"apps/{include}"


def check_file(path, includes, by_folder, by_source):
    folder = folder_of(without_root(path))
    if folder is None:
        return [f"{path}: its folder has no place in the order of check_includes.py"]
    if path.endswith(".cc") and path not in by_source:
        return [f"{path}: belongs to no target"]
    allowed = by_source.get(path, by_folder.get(folder, set()) | {folder})
    if (folder in ("apps", "lab", "tests") and path.endswith(".h")) or path.endswith("_fixture.h"):
        allowed = set(ORDER)  # held to account by the sources that include it
    problems = []
    for include in includes:
        its_folder = folder_of(without_root(include))
        if its_folder == folder or its_folder is None:
            continue
        if rank(its_folder) > rank(folder):
            problems.append(f"{path}: includes {include}, which points up from {folder}")
        elif its_folder not in allowed:
            problems.append(f"{path}: includes {include}, but DEPS lacks {its_folder}")
    return problems


def is_production(path):
    if path.startswith(CUDA) and ("/testing/" in path or path.endswith(("_case.cc", "_case.h"))):
        return False
    return not (path.startswith("tests/") or path.endswith(("_test.cc", "_fixture.h", "_fuzz.cc", "_bench.cc")))


def check_kernels(path, includes):
    if not path.startswith(KERNELS) or not is_production(path):
        return []
    return [f"{path}: includes {include}; kernels of a GPU may include formats, tensors and what they are written in"
            for include in includes if not include.startswith(OF_KERNELS)]


def check_cpu(path, includes):
    if path in CPU_FILES or path.startswith((CPU, CUDA)) or not is_production(path):
        return []
    return [f"{path}: includes {include}, which belongs to the CPU; other code asks by verbs of a machine"
            for include in includes if include.startswith(CPU)]


def check_precompiled(root, path, graph):
    """Uses of precompiled headers that nothing includes."""
    reached, waiting, included = {path}, [path], set()
    while waiting:
        file = waiting.pop()
        included.update(ANY_INCLUDE.findall((root / file).read_text()))
        new = set(graph.get(file, ())) - reached
        reached |= new
        waiting += new
    text = COMMENT.sub("", (root / path).read_text())
    return [f"{path}: uses <{header}>, but neither it nor a header of the project includes it"
            for header, use in PRECOMPILED.items() if header not in included and use.search(text)]


def find_cycle(graph):
    """One include cycle as a list of paths, or None. Iterative depth-first search."""
    done = set()
    for start in graph:
        path, stack = [start], [iter(graph[start])]
        while stack and start not in done:
            following = next(stack[-1], None)
            if following is None:
                done.add(path.pop())
                stack.pop()
            elif following in path:
                return path[path.index(following):] + [following]
            elif following not in done and following in graph:
                path.append(following)
                stack.append(iter(graph[following]))
    return None


def subfolder_graphs(graph):
    """By folder: which of its subfolders include which, each with the include that shows it."""
    graphs = {}
    for path, includes in graph.items():
        if not is_production(path):
            continue
        for include in includes:
            here, there = Path(path).parts[:-1], Path(include).parts[:-1]
            n = next((i for i, (a, b) in enumerate(zip(here, there)) if a != b), None)
            if n is None or n == 0:
                continue
            edges = graphs.setdefault("/".join(here[:n]), {})
            edges.setdefault(here[n], {}).setdefault(there[n], f"{path} includes {include}")
    return graphs


def check_subfolders(graph):
    problems = []
    for folder, edges in sorted(subfolder_graphs(graph).items()):
        cycle = find_cycle({subfolder: list(others) for subfolder, others in edges.items()})
        if cycle:
            shown = "; ".join(edges[a][b] for a, b in zip(cycle, cycle[1:]))
            problems.append(f"{folder}: subfolders hold each other: " + " -> ".join(cycle) + f" ({shown})")
    return problems


def check_installed(root):
    """Includes of installed headers, which no header of the tree goes with."""
    for path in sorted((root / "include").rglob("*.h")):
        for include in INCLUDE.findall(path.read_text()):
            if not (root / "include" / include).is_file():
                yield f"{path.relative_to(root)}: includes {include}, which is not installed"


def check(root):
    targets = find_targets(root)
    folder_by_library = {t.name: t.folder for t in targets if t.is_library}
    problems = check_deps(targets, folder_by_library)
    by_folder, by_source = allowed_folders(targets, folder_by_library)
    files = sorted(
        p.relative_to(root).as_posix() for top in ("src", "lab", "apps", "tests")
        for p in (root / top).rglob("*") if p.suffix in (".h", ".cc", ".cu", ".cuh"))
    graph = {path: list(includes_of(root, path)) for path in files}
    for path in files:
        problems += check_file(path, graph[path], by_folder, by_source)
        problems += check_cpu(path, graph[path])
        problems += check_kernels(path, graph[path])
        if path.endswith(".cc"):
            problems += check_precompiled(root, path, graph)
    problems += check_installed(root)
    cycle = find_cycle(graph)
    if cycle:
        problems.append("include cycle: " + " -> ".join(cycle))
    problems += check_subfolders(graph)
    return len(files), problems


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    n_files, problems = check(root)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"check_includes: {n_files} files, {len(problems)} problems")
    return 1 if problems or n_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
