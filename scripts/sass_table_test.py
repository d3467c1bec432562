#!/usr/bin/env python3
"""sass_table.py must count loops of machine code as it says, and find what became worse."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import sass_table  # noqa: E402

# Ten instructions: an outer loop (0x10 to 0x70) around a loop of products (0x20 to 0x40), of a reader that line 3 of a source
# calls, and one of sums (0x50 to 0x60).
LISTING = """
\t.section\t.nv.info,"",@"SHT_CUDA_INFO"
\t//----- nvinfo : EIATTR_REGCOUNT
        /*0000*/ \t.byte\t0x04, 0x2f
        /*0004*/ \t.word\tindex@(_Z7ProductPf)
        /*0008*/ \t.word\t0x0000002a
\t.section\t.text._Z7ProductPf,"ax",@progbits
_Z7ProductPf:
\t//## File "/x/src/a.cu", line 2
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   MOV R5, RZ ;
.L_x_2:
\t//## File "/x/src/b.cuh", line 1 inlined at "/x/src/a.cu", line 3
\t//## File "/x/src/a.cu", line 3
        /*0020*/              @!P0 LDS R4, [R2] ;
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0040*/               @P0 BRA `(.L_x_2) ;
.L_x_3:
\t//## File "/x/src/a.cu", line 4
        /*0050*/                   FADD R4, R4, R5 ;
        /*0060*/              @!P1 BRA P2, `(.L_x_3) ;
        /*0070*/              @UP0 BRA.U `(.L_x_1) ;
        /*0080*/                   EXIT ;
.L_x_4:
        /*0090*/                   BRA `(.L_x_4);
        /*00a0*/                   NOP;
"""
SOURCE = """
code
  AddUnitScores<2, kN>(rows, block);
code
"""

KERNEL = """
__global__ void Loops(const unsigned* a, float* c, int n) {
  float sums[4] = {};
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) : "r"(a[i]));
  }
  for (int i = 0; i < 4; ++i) c[i] = sums[i];
}
__global__ void Local(const int* where, float* out, int n) {
  float kept[64];
  for (int i = 0; i < n; ++i) kept[where[i] & 63] = i;
  for (int i = 0; i < n; ++i) out[i] = kept[where[i + n] & 63];
}
"""


def instruction(address, opcode, reader=None, target=None):
    return sass_table.Instruction(address, opcode, target, reader)


class CountsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        (Path(folder.name) / "src").mkdir()
        (Path(folder.name) / "src/a.cu").write_text(SOURCE)
        sources = sass_table.Sources(Path(folder.name))
        self.instructions = sass_table.instructions_by_kernel(LISTING, sources)["_Z7ProductPf"]
        self.loops = sass_table.loops_of(self.instructions)

    def test_finds_loops_by_branches_backwards(self):
        self.assertEqual(self.loops, [(0x10, 0x70), (0x20, 0x40), (0x50, 0x60)])

    def test_the_main_loop_holds_the_products(self):
        self.assertEqual(sass_table.main_loop(self.instructions, self.loops), (0x20, 0x40))

    def test_knows_readers_by_the_lines_that_call_them(self):
        self.assertEqual([i.address for i in self.instructions if i.reader == "AddUnitScores<2>"], [0x20, 0x30, 0x40])

    def test_a_row_has_registers_and_instructions(self):
        self.assertEqual(sass_table.rows_of("x", LISTING)["x: Product"],
                         {"registers": 42, "local": 0, "products": 1, "instructions": 10, "loop": 3})

    def test_a_format_costs_its_tiles_what_is_besides_and_the_rest(self):
        # A pass over a block: 20 of no reader, 10 of them in a loop; two readers with loops of 8 instructions, which take two
        # tiles a pass and one, and 5 and 3 besides; one of another format.
        body, loops, at = [], [], 0

        def add(n, reader, n_products=0, is_loop=False):
            nonlocal at
            first = at
            for i in range(n):
                body.append(instruction(at, "HMMA.16816.F32" if i < n_products else "MOV", reader))
                at += 16
            if is_loop:
                loops.append(sass_table.Loop(first, at - 16))

        add(10, None)
        add(10, None, is_loop=True)
        add(5, "AddNumberScores<4>")
        add(8, "AddNumberScores<4>", n_products=2 * 5, is_loop=False)
        loops.append(sass_table.Loop(at - 8 * 16, at - 16))
        add(3, "AddNumberValues<4>")
        add(8, "AddNumberValues<4>", n_products=4, is_loop=True)
        add(9, "AddNumberValues<8>", n_products=4, is_loop=True)
        body = [i._replace(opcode="HMMA") if i.reader == "AddNumberScores<4>" and i.address >= loops[1].first else i
                for i in body]
        # All eight of the first loop are products now, which are 8/5 of a tile.
        costs = sass_table.costs_of_formats(body, loops, 1)
        of_keys, of_values = 8 * (8 / (8 / 5)) + 5, 8 * 8 + 3
        self.assertEqual(costs, {"uniform 4": round((10 + of_keys + of_values) / (2 * 8 * 32), 2)})


class GateTest(unittest.TestCase):
    ROW = {"registers": 40, "local": 0, "products": 8, "instructions": 1000, "loop": 400}

    def problems(self, **changed):
        return sass_table.problems_of({"k": {**self.ROW, **changed}}, {"k": self.ROW})

    def test_lets_through_what_is_no_worse(self):
        self.assertEqual(self.problems(), [])
        self.assertEqual(self.problems(registers=38, instructions=1020, loop=410, products=4), [])

    def test_names_what_is_worse(self):
        for changed, said in (({"registers": 41}, "41 registers, recorded are 40"), ({"local": 2}, "2 instructions that touch local"),
                              ({"loop": 440}, "440 instructions in the main loop"), ({"products": 0}, "no products"),
                              ({"instructions": 1100}, "1100 instructions, recorded are 1000")):
            found = self.problems(**changed)
            self.assertEqual(len(found), 1, found)
            self.assertIn(said, found[0])

    def test_names_kernels_that_come_and_go(self):
        self.assertEqual(sass_table.problems_of({"new": self.ROW}, {"old": self.ROW}),
                         ["new: not recorded", "old: recorded, but no kernel has this name"])

    def test_holds_instructions_a_code_to_their_bound(self):
        name = "attend.decode: DecodeRows8Kernel"
        found = sass_table.problems_of({name: {**self.ROW, "a_code": {"uniform 4": 4.5, "trellis 2": 5.0, "rows": 9}}},
                                       {name: {**self.ROW, "a_code": {"uniform 4": 4.4, "trellis 2": 4.0, "rows": 9}}})
        self.assertEqual(found, [f"{name}: 4.5 instructions a code of uniform 4, of which 4 are allowed",
                                 f"{name}: 5.0 instructions a code of trellis 2, recorded are 4.0"])


class PageTest(unittest.TestCase):
    def test_the_page_has_what_is_recorded(self):
        recorded = json.loads(sass_table.TABLE.read_text())
        self.assertIn(sass_table.page_table(recorded), sass_table.PAGE.read_text())


class CompiledTest(unittest.TestCase):
    """A kernel whose loop is known, where the tools are there."""

    def test_a_loop_with_one_product(self):
        nvcc, nvdisasm = os.environ.get("KVLATHE_NVCC"), os.environ.get("KVLATHE_NVDISASM") or "nvdisasm"
        if not nvcc or not shutil.which(nvdisasm):
            self.skipTest("nvcc or nvdisasm is not there")
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "k.cu").write_text(KERNEL)
            subprocess.run([nvcc, "-O3", "-arch=sm_90a", "-cubin", "-o", "k.cubin", "k.cu"], cwd=folder, check=True)
            table = sass_table.table_of(Path(folder), nvdisasm)
        self.assertEqual(sorted(table), ["k: Local", "k: Loops"])
        loops = table["k: Loops"]
        self.assertEqual((loops["products"], loops["local"]), (1, 0))
        # A load, a product, a counter and a branch are the least; addresses and waits come on top.
        self.assertTrue(4 <= loops["loop"] <= 20, loops)
        self.assertGreater(table["k: Local"]["local"], 0)


if __name__ == "__main__":
    unittest.main()
