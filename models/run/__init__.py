"""How a placed model runs: prefill, decode, head."""
