"""Parts of lab/retrofit.py."""
