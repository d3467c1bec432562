#!/usr/bin/env python3
"""What the kernels of a GPU became: a table from the machine code (SASS) that nvcc made, and its gate.

No GPU is needed: `cmake --preset cuda` and the target cuda_cubins make the machine code, NVIDIA's nvdisasm reads it.

  sass_table.py show      prints the table
  sass_table.py check     compares it with docs/speed/sass.json: fails where a kernel takes more registers or its main
                          loop more instructions than is recorded, touches local memory (spills), has lost its products of
                          matrices, takes more instructions a code than its bound, or is not recorded
  sass_table.py record    writes that file anew

How it counts. The main loop of a kernel is the smallest loop that holds at least half of its products of matrices (HMMA),
and without products the loop of most instructions. A loop is what lies between a branch backwards and its target. Where
loops lie in the main loop, their instructions count once for each time they run in one pass of it, if LOOPS says how often,
else once. Instructions a code are the instructions of a pass of the main loop, times the threads of a block, divided by the
codes that the block decodes in it (LOOPS): so many instructions a lane spends on each of its codes, softmax, barriers and
branches included.
"""
import argparse
import json
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/speed/sass.json"

# What is known of the loops of kernels: names (as the table has them), how many threads a block has, how many codes it
# decodes in a pass of the main loop, how often the loops within it run (by their order), and the instructions a code that a
# kernel may take.
Loops = namedtuple("Loops", "pattern n_threads n_codes inner bound")
LOOPS = []
# A kernel that touches local memory, and why.
LOCAL_MEMORY = {}
# Registers are given out by eights; instructions shift by a few with every change of a neighbour.
REGISTER_STEP = 8
TOLERANCE = 0.03

SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,]+),")
LABEL = re.compile(r"^(\.L[\w.]+):")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
BRANCH_TARGET = re.compile(r"`\((\.L[\w.]+)\)")
REGISTERS = re.compile(r"nvinfo : EIATTR_REGCOUNT\n(?:.*\n)*?.*index@\(([^)]+)\)\n.*\.word\s+(0x[0-9a-f]+)")
PRODUCT = re.compile(r"^(HMMA|IMMA|QMMA|OMMA|BMMA)\b")
LOCAL = re.compile(r"^(LDL|STL)\b")

Instruction = namedtuple("Instruction", "address opcode target")
Loop = namedtuple("Loop", "first last")  # addresses, both within


def instructions_by_kernel(text):
    """Of nvdisasm's output, by symbol, with targets of branches as addresses."""
    kernels, labels, waiting = {}, {}, []
    symbol = None
    for line in text.splitlines():
        if match := SECTION.match(line):
            symbol, labels[match[1]], waiting = match[1], {}, []
            kernels[symbol] = []
        elif line.lstrip().startswith(".section"):
            symbol = None
        elif symbol is None:
            continue
        elif match := LABEL.match(line):
            waiting.append(match[1])
        elif match := INSTRUCTION.match(line):
            address = int(match[1], 16)
            for label in waiting:
                labels[symbol][label] = address
            waiting = []
            target = BRANCH_TARGET.search(match[3]) if match[2].startswith("BRA") else None
            kernels[symbol].append(Instruction(address, match[2], target and target[1]))
    return {symbol: [i._replace(target=labels[symbol].get(i.target)) for i in instructions]
            for symbol, instructions in kernels.items()}


def loops_of(instructions):
    """All loops, one for each target of a branch backwards. A branch to itself is how a kernel ends, and no loop."""
    last_by_first = {}
    for instruction in instructions:
        if instruction.target is not None and instruction.target < instruction.address:
            last_by_first[instruction.target] = max(last_by_first.get(instruction.target, 0), instruction.address)
    return [Loop(first, last) for first, last in sorted(last_by_first.items())]


def within(instructions, loop):
    return [i for i in instructions if loop.first <= i.address <= loop.last and i.opcode != "NOP"]


def n_products(instructions):
    return sum(bool(PRODUCT.match(i.opcode)) for i in instructions)


def main_loop(instructions, loops):
    total = n_products(instructions)
    if total:
        holding = [loop for loop in loops if 2 * n_products(within(instructions, loop)) >= total]
        return min(holding, key=lambda loop: len(within(instructions, loop)), default=None)
    return max(loops, key=lambda loop: len(within(instructions, loop)), default=None)


def pass_of(instructions, loop, loops, times=()):
    """(instructions of a pass of a loop, how many loops lie directly in it); those run `times`, in their order."""
    inner = [other for other in loops if loop.first <= other.first and other.last <= loop.last and other != loop]
    outermost = [a for a in inner if not any(b != a and b.first <= a.first and a.last <= b.last for b in inner)]
    n = len(within(instructions, loop))
    for other, n_times in zip(outermost, times):
        n += (n_times - 1) * len(within(instructions, other))
    return n, len(outermost)


def names_of(symbols):
    """Readable names: without namespaces, parameters and what the compiler adds."""
    shown = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True).stdout
    names = []
    for name in shown.splitlines():
        name = re.sub(r"\b_GLOBAL__N_\w+::|\(anonymous namespace\)::|kvlathe::(cuda|simt)::|kvlathe::", "", name)
        name = re.sub(r"^void ", "", name)
        name = re.sub(r"\([A-Za-z_][\w:]*\)(?=-?\d)", "", name)  # casts of template arguments
        names.append(re.sub(r"\((?:[^()]|\([^()]*\))*\)$", "", name))
    return names


def row_of(name, instructions, n_registers):
    loops = loops_of(instructions)
    known = next((entry for entry in LOOPS if re.search(entry.pattern, name)), None)
    row = {"registers": n_registers, "local": sum(bool(LOCAL.match(i.opcode)) for i in instructions),
           "instructions": sum(i.opcode != "NOP" for i in instructions), "products": n_products(instructions)}
    loop = main_loop(instructions, loops)
    if loop is not None:
        row["loop"], row["inner_loops"] = pass_of(instructions, loop, loops, known.inner if known else ())
        if known:
            row["a_code"] = round(row["loop"] * known.n_threads / known.n_codes, 2)
    return row


def rows_of(stem, text):
    registers = {symbol: int(n, 16) for symbol, n in REGISTERS.findall(text)}
    kernels = instructions_by_kernel(text)
    return {f"{stem}: {name}": row_of(f"{stem}: {name}", kernels[symbol], registers.get(symbol, 0))
            for symbol, name in zip(kernels, names_of(kernels))}


def table_of(cubins, nvdisasm):
    table = {}
    for cubin in sorted(cubins.glob("*.cubin")):
        ran = subprocess.run([nvdisasm, cubin], capture_output=True, text=True)
        if ran.returncode != 0:
            raise SystemExit(f"sass_table.py: {nvdisasm} cannot read {cubin}: {ran.stderr.strip()}")
        table.update(rows_of(cubin.stem, ran.stdout))
    if not table:
        raise SystemExit(f"sass_table.py: no machine code in {cubins}; build the target cuda_cubins "
                         "(cmake --build --preset cuda-check)")
    return table


def problems_of(table, recorded):
    problems = []
    for name, row in table.items():
        if row["local"] and name not in LOCAL_MEMORY:
            problems.append(f"{name}: {row['local']} instructions that touch local memory (spills)")
        known = next((entry for entry in LOOPS if re.search(entry.pattern, name)), None)
        if known and known.bound and row.get("a_code", 0) > known.bound:
            problems.append(f"{name}: {row['a_code']} instructions a code, of which {known.bound} are allowed")
        before = recorded.get(name)
        if before is None:
            problems.append(f"{name}: not recorded")
            continue
        if -(-row["registers"] // REGISTER_STEP) > -(-before["registers"] // REGISTER_STEP):
            problems.append(f"{name}: {row['registers']} registers, recorded are {before['registers']}")
        if before["products"] and not row["products"]:
            problems.append(f"{name}: no products of matrices, recorded are {before['products']}")
        for what, shown in (("loop", "instructions in the main loop"), ("instructions", "instructions")):
            if row.get(what, 0) > before.get(what, 0) * (1 + TOLERANCE) + 4:
                problems.append(f"{name}: {row[what]} {shown}, recorded are {before.get(what, 0)}")
    problems += [f"{name}: recorded, but no kernel has this name" for name in recorded if name not in table]
    return problems


def show(table):
    columns = ("registers", "local", "products", "instructions", "loop", "inner_loops", "a_code")
    width = max(map(len, table))
    print(f"{'kernel':<{width}}" + "".join(f"{column:>13}" for column in columns))
    for name, row in table.items():
        print(f"{name:<{width}}" + "".join(f"{row.get(column, ''):>13}" for column in columns))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=("show", "check", "record"))
    parser.add_argument("--cubins", type=Path, default=ROOT / "build/cuda/cubins")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm") or str(ROOT / "build/cuda_toolkit/bin/nvdisasm"))
    arguments = parser.parse_args()
    if not shutil.which(arguments.nvdisasm):
        print("sass_table.py: skipped, nvdisasm is not there; scripts/fetch_cuda.sh --disassembler fetches it")
        return 77
    table = table_of(arguments.cubins, arguments.nvdisasm)
    if arguments.action == "show":
        show(table)
    elif arguments.action == "record":
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
        arguments.table.write_text("{\n" + lines + "\n}\n")
        print(f"{arguments.table}: {len(table)} kernels")
    else:
        problems = problems_of(table, json.loads(arguments.table.read_text()))
        print("\n".join(problems), file=sys.stderr)
        print(f"sass_table: {len(table)} kernels, {len(problems)} problems")
        if problems:
            print("What is meant to be so is recorded by scripts/sass_table.py record; the reason belongs into the commit.")
        return int(bool(problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
