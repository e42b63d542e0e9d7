"""Outside of the schedules no code depends on a buffer's name: each buffer declares its own role."""

import ast
from pathlib import Path

import pytest

import wafer_triton
from wafer_triton.decoder import decode, prefill
from wafer_triton.decoder.block import Block, drafted
from wafer_triton.decoder.expert_places import ExpertRegions
from wafer_triton.device.mesh import Mesh
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.moe import Experts

ROOT = Path(wafer_triton.__file__).resolve().parents[1]
# rooms that declare schedules, and whose words are operands of operations or of an intent about buffers
OTHER = ("schedule", "algorithms", "decoder", "train", "local", "verify")
# words that mean something else in these files
MEANT = {
    "wafer_triton/cli/compare.py": {"values"}, "wafer_triton/cli/draw.py": {"values"},  # --values
    "wafer_triton/cli/estimate.py": {"values"}, "wafer_triton/draw/__init__.py": {"values"},
    "wafer_triton/draw/scenes.py": {"values", "slots"}, "wafer_triton/draw/summaries.py": {"norm"},
    "wafer_triton/compare/algorithms.py": {"values"},
    "wafer_triton/compare/operations.py": {"qkv", "bias"},  # labels of steps
    "wafer_triton/ops/executors.py": {"ranks"}, "wafer_triton/cost/calibrate/paper.py": {"table"},
    "wafer_triton/cost/calibrate/tried.py": {"table"},
    "wafer_triton/shape/read.py": {"qk_norm"}, "models/convert.py": {"bias"},
    "wafer_triton/draw/explained.py": {"shares"},
}  # fmt: skip


def buffer_names() -> set[str]:
    """Return the names of all buffers of decoders, of more letters than an axis or a size has."""
    names: set[str] = set()
    for experts in (None, Experts(6, 2, 12, shared_width=16)):
        shape = DecoderShape(24, 40, 2, 4, 2, 6, 99, qkv_bias=True, qk_norm=True, experts=experts)
        for groups in (1, 2):
            block = Block(shape, Mesh(4, 4), "fp16", "fp32", 3, head_groups=groups)
            kinds = (*shape.layers_of, "embedding", "head")
            sub_layers = [sub_layer for kind in kinds for sub_layer in decode.sharing(block, kind)]
            found = [drafted(sub_layer, block, *args) for sub_layer, args in sub_layers]
            for regions in (None, ExpertRegions(2, 2)):
                own = Block(shape, Mesh(4, 4), "fp16", head_groups=groups, expert_regions=regions if experts else None)
                sub_layers = [sub_layer for kind in shape.layers_of for sub_layer in prefill.sharing(own, kind, 2, 2)]
                found += [drafted(sub_layer, own, *args) for sub_layer, args in sub_layers]
            names.update(name for schedule in found for name in schedule.buffers)
    return {name for name in names if len(name) > 2}


@pytest.mark.slow
def test_no_buffer_is_named_outside_of_the_schedules():
    names = buffer_names()
    assert {"wqkv", "wdown", "k_cache", "keys", "expert_ids"} <= names
    for folder in ("wafer_triton", "models"):
        for path in (ROOT / folder).rglob("*.py"):
            file = path.relative_to(ROOT)
            if file.parts[1] in OTHER:
                continue
            said = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
            assert not (said & names) - MEANT.get(str(file), set()), file
