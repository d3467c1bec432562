"""What lab/results.py is made of: plan (what is measured), prepare (files that it needs), measure (one
program call a cell), store (the JSON file), provenance, and tables, page and fill (what is written of it)."""
