"""Runs of a placed model: prefill, decode, embedding and head."""
