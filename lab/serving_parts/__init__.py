"""Parts of scripts/serving.py."""
