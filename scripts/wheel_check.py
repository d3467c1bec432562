#!/usr/bin/env python3
"""Tries an installed wheel, where nothing but it and NumPy is: scripts/wheel.sh calls it.

The folder that it runs in has README.md and the model.gguf of its lines, lathe-nano in models/, and the folders python of
examples and tests as examples/ and tests/. What fails is said, and the exit status is 1.
"""
import importlib.util
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path.cwd()
SITE = pathlib.Path(sys.prefix) / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
PROGRAM = pathlib.Path(sys.prefix) / "bin/kvlathe"
MODEL = HERE / "models/lathe-nano"
MAX_IMPORT_SECONDS = 0.3
# Of what PEP 600 says that every Linux has. All else has to be in the wheel.
OF_EVERY_SYSTEM = {"ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0",
                   "libresolv.so.2", "librt.so.1", "libstdc++.so.6", "libz.so.1"}


class Failed(Exception):
    """The wheel is not as it should be."""


def output_of(*command: str | os.PathLike[str], **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300)
    if done.returncode != 0:
        raise Failed(f"{' '.join(str(word) for word in command)}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def python(program: str, **environment: str) -> str:
    return output_of(sys.executable, "-B", "-c", program, **environment)


def check_place() -> str:
    place = python("import kvlathe; print(kvlathe.__file__)").strip()
    if not place.startswith(str(SITE)):
        raise Failed(f"kvlathe is {place}, and not in {SITE}")
    return place


def check_import_time() -> str:
    program = "import time; t = time.perf_counter(); import kvlathe; print(time.perf_counter() - t)"
    seconds = sorted(float(python(program)) for _ in range(7))
    # The first has the files to read from disk; others may have the processors.
    if seconds[0] > MAX_IMPORT_SECONDS:
        raise Failed(f"import takes {seconds[0]:.3f} s, which is more than {MAX_IMPORT_SECONDS} s")
    return f"{seconds[0]:.3f} s, median {statistics.median(seconds):.3f} s of {len(seconds)}"


def check_libraries() -> str:
    """What the loader maps for the module and the program lies in the wheel, or is of every system."""
    folder = SITE / "kvlathe.libs"
    mapped = python("import kvlathe; print(open('/proc/self/maps').read())")
    found = set(re.findall(r"(/\S+\.so\S*)", mapped)) | set(re.findall(r"=> (/\S+)", output_of("ldd", SITE / "kvlathe/bin/kvlathe")))
    if "not found" in output_of("ldd", SITE / "kvlathe/bin/kvlathe"):
        raise Failed("a library of the program is not there")
    # Of the interpreter: what it has mapped without the module.
    without = set(re.findall(r"(/\S+\.so\S*)", python("print(open('/proc/self/maps').read())")))
    stdlib = str(pathlib.Path(os.__file__).parent)
    for file in sorted(found - without):
        path = pathlib.Path(file)
        name = re.sub(r"(\.so\.\d+).*", r"\1", path.name)  # libstdc++.so.6 is libstdc++.so.6.0.30
        if SITE in path.parents or name in OF_EVERY_SYSTEM or file.startswith(stdlib):
            continue
        raise Failed(f"{file} is used, and not in the wheel")
    return f"{len(list(folder.iterdir()))} libraries in kvlathe.libs"


def check_program() -> str:
    if f"kvlathe {python('import kvlathe; print(kvlathe.__version__)').strip()}" not in output_of(PROGRAM, "--version"):
        raise Failed("the program and the module have different versions")
    said = output_of(PROGRAM, "run", "-m", MODEL, "-p", "Once upon a time", "-n", "8", "--kv", "lathe(ratio=4)")
    output_of(sys.executable, "-m", "kvlathe", "--help")
    return repr(said[-40:])


def check_instruction_sets() -> str:
    best = python("from kvlathe import _native; print(_native.instruction_set())").strip()
    for isa in ("scalar", "avx2"):
        said = python("from kvlathe import _native; print(_native.instruction_set())", KVLATHE_ISA=isa).strip()
        if said != isa:
            raise Failed(f"KVLATHE_ISA={isa} gives {said}")
        python(f"import kvlathe; kvlathe.LLM({str(MODEL)!r}, kv='lathe(ratio=4)', quiet=True).generate('Once')", KVLATHE_ISA=isa)
    return f"scalar, avx2 and {best}"


def check_readme() -> str:
    """Its lines of Python, with the model that they name."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^    import kvlathe\n(?:    .*\n|\n)*", text, re.MULTILINE)
    if not blocks:
        raise Failed("README.md has no lines of Python")
    for block in blocks:
        python(re.sub(r"^    ", "", block, flags=re.MULTILINE))
    return f"{len(blocks)} of them"


def is_guest(example: pathlib.Path) -> bool:
    """Whether an example needs a package that is not here."""
    modules = re.findall(r"^(?:import|from) (\w+)", example.read_text(encoding="utf-8"), re.MULTILINE)
    return any(importlib.util.find_spec(module) is None for module in modules)


def check_examples() -> str:
    """Those that need no further package, with lathe-nano."""
    names = []
    for example in sorted((HERE / "examples").glob("*.py")):
        if not is_guest(example):
            output_of(sys.executable, "-B", example, MODEL)
            names.append(example.name)
    return ", ".join(names) or "none that needs no further package"


def check_tests() -> str:
    for name in ("smoke_test.py", "hostile_test.py"):
        output_of(sys.executable, "-B", HERE / "tests" / name, PROGRAM, MODEL)
    return "smoke_test.py, hostile_test.py"


CHECKS = {
    "where it is": check_place,
    "import": check_import_time,
    "libraries": check_libraries,
    "the program": check_program,
    "instruction sets": check_instruction_sets,
    "README": check_readme,
    "examples": check_examples,
    "tests": check_tests,
}


def main() -> None:
    failures = 0
    print(f"Python {sys.version.split()[0]}")
    for name, check in CHECKS.items():
        start = time.monotonic()
        try:
            print(f"  {name}: {check()} ({time.monotonic() - start:.1f} s)")
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"  {name}: FAILED: {error}")
            failures += 1
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
