"""Parts of lab/serving.py."""
