"""The notebook of examples/python/caches.ipynb, executed with the module that was built: every cell runs, and its pictures show
something. It stands in the tree without outputs. Called as notebook_test.py KVLATHE LATHE_NANO; KVLATHE_NOTEBOOK_PICTURES names
a folder that keeps the pictures, KVLATHE_NOTEBOOK_MODEL another model. Ends with 77, a skip, without nbclient, matplotlib
or an IPython kernel (scripts/python_env.sh --tests)."""

import base64
import io
import os
import pathlib
import re
import sys
import unittest

try:
    import ipykernel  # noqa: F401
    import matplotlib.image
    import nbclient
    import nbformat
except ImportError as missing:
    print(f"skipped: {missing} (scripts/python_env.sh --tests)")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NOTEBOOK = ROOT / "examples/python/caches.ipynb"
PICTURES = ("size-and-loss", "spectra", "bits")


class NotebookTest(unittest.TestCase):
    def test_it_is_kept_without_outputs_and_its_links_lead_somewhere(self):
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        nbformat.validate(notebook)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                self.assertEqual((cell.outputs, cell.execution_count), ([], None), cell.id)
            for link in re.findall(r"\]\(([^)#]+)", cell.source) if cell.cell_type == "markdown" else ():
                self.assertTrue((NOTEBOOK.parent / link).exists(), link)

    def test_every_cell_runs_and_pictures_show_something(self):
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        if model := os.environ.get("KVLATHE_NOTEBOOK_MODEL"):
            [place] = [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ())]
            notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(f"MODEL = {os.path.abspath(model)!r}", id="other-model"))
        # The kernel is of the interpreter that runs this test, and finds the module where this test does.
        nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3",
                                resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
        cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
        self.assertEqual([id for id, cell in cells.items() if any("image/png" in output.get("data", {}) for output in cell.outputs)],
                         list(PICTURES))
        for name in PICTURES:
            [png] = [output.data["image/png"] for output in cells[name].outputs if "image/png" in output.get("data", {})]
            self.keep(name, base64.b64decode(png))
            pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(png)))[..., :3]
            self.assertGreater(min(pixels.shape[:2]), 300, name)
            # Lines and bars in colours, on white.
            coloured = (pixels.max(axis=2) - pixels.min(axis=2)) > 0.2
            self.assertGreater(coloured.mean(), 0.001, name)
            self.assertGreater((pixels > 0.98).all(axis=2).mean(), 0.3, name)
        self.check_what_it_says(cells)

    def keep(self, name, png):
        if folder := os.environ.get("KVLATHE_NOTEBOOK_PICTURES"):
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            (pathlib.Path(folder) / f"{name}.png").write_bytes(png)

    def check_what_it_says(self, cells):
        table = next(output.data["text/plain"] for output in cells["compare"].outputs if "text/html" in output.get("data", {}))
        for kv in ("none", "kivi(bits=3)", "fdc(rate=0.75)", "tova(keep=0.25)", "lathe(ratio=4)"):
            self.assertIn(kv, table + str(cells["compare"].outputs))
        said = {name: "".join(output.get("text", "") for output in cells[name].outputs) for name in ("pick", "write")}
        picked = re.match(r"(\S+): (0\.\d+) of the bytes, KL (\S+), top-1 agreement (\S+)\n", said["pick"])
        self.assertIsNotNone(picked, said["pick"])
        self.assertLessEqual(float(picked.group(2)), 0.4)
        written = re.findall(r"^--- (\S+): (\d+) bytes of cache, (\S+) of 16 bits$", said["write"], re.MULTILINE)
        self.assertEqual([kv for kv, _, _ in written], ["none", picked.group(1)])
        self.assertLess(int(written[1][1]), int(written[0][1]))
        # Nothing is said on standard error.
        for name, cell in cells.items():
            self.assertEqual([output.text for output in cell.outputs if output.get("name") == "stderr"], [], name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
