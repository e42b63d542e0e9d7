"""Checkpoints: fetched, read, and their text."""
