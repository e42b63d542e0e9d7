"""Checkpoints: fetch and read them, and convert text to tokens."""
