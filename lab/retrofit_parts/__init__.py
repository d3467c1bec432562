"""Parts of scripts/retrofit.py."""
