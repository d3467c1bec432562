"""What lab/pass_at_1.py is made of: a sandbox, the programs that run in it, and their scores."""
