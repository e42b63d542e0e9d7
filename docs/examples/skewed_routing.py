"""Skewed routing of a mixture of experts: tokens take fewer experts, so fewer of its weights are in use."""

import json
import tempfile
from pathlib import Path

from wafer_triton import estimate
from wafer_triton.shape.read import shape_of
from wafer_triton.shape.routing import drawn

MODEL = shape_of("olmoe-1b-7b")

if __name__ == "__main__":
    for skew in (0.0, 0.8, 1.6):
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"  # `wafer-triton generate --routing-out` writes one of a real run
            trace.write_text(json.dumps({"experts": drawn(MODEL, tokens=64, skew=skew)}))
            cap = estimate.cap(model=MODEL, mesh=360, context=512, batch=8, routing=trace)
        hit = f"{cap.distinct_experts:.1f} of 64 experts a layer, one takes {cap.most_tokens_per_expert} of 8 tokens"
        shares = f"S-MBU {100 * cap.s_mbu:.4f} %, MBU {100 * cap.mbu:.4f} %"
        print(f"skew {skew:.1f}: {hit} at most; {shares}, predicted on the wafer")
