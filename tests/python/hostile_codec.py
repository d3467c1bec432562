"""Hostile calls of kvlathe.codec (hostile_test.py)."""
