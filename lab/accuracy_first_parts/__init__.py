"""What lab/accuracy_first.py is made of: what is measured (plan), the smallest caches (caches), their times (times), and the file (book)."""
