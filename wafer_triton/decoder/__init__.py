"""Decoder layers as schedules: attention, feed-forward, experts and their weights, for decode and prefill."""
