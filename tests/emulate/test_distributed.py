"""The mesh over ranks of torch.distributed: the bits of one process, the bytes between ranks, and errors."""

import numpy as np
import pytest
import torch

import ranked
import schedules
from wafer_triton import distributed, mesh_gemm
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.emulate.ranks.executor import DistributedExecutor
from wafer_triton.emulate.ranks.shards import Shard, partition
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.errors import BackendError, MeshError

pytestmark = pytest.mark.slow

PRODUCTS = [*schedules.SUMS, *schedules.MOVES]
LAYERS = [name for name in schedules.LAYERS if "groups" not in name and "past" not in name]
OURS = ["gemm-mesh", "gemm-t-mesh", "gemm-beside", "gemv-ktree-y", "gemv-ktree-x", *schedules.MOVES]


@pytest.mark.parametrize(
    ("ranks", "mesh", "shards", "names", "dtype", "executor"),
    [
        (2, "4x2", None, PRODUCTS, "fp32", TorchExecutor),  # folded to 4 x 4 for products of matrices
        (3, "4x4", (3, 1), OURS, "fp32", TorchExecutor),
        (4, "3x3", None, [*OURS, *LAYERS, "prefill-attention-head-groups"], "bf16", TorchExecutor),
        (2, "2x2", None, ["gemm-mesh", "gemv-ktree-y", "rms-norm"], "fp32", TritonExecutor),
    ],
)
def test_ranks_compute_the_bits_of_one_process(ranks, mesh, shards, names, dtype, executor):
    assert ranked.on_ranks(ranks, ranked.wrong, mesh, shards, names, dtype, executor) == [[]] * ranks


@pytest.mark.parametrize("name", ["gemm-mesh", "rms_norm_dx"])  # which adds two sums by one tree
def test_the_record_has_the_bytes_that_crossed(name):
    """Count, with explicit exchange, a tile once for each rank that receives it from another."""
    answers = ranked.on_ranks(4, ranked.sent, "4x4", name)
    assert all(answer["explicit"] == answers[0]["explicit"] for answer in answers)
    schedule, owner, crossed = schedules.build(ranked.KNOWN[name], "4x4", "fp32"), answers[0]["owner"], []
    for round_ in schedule.rounds:
        tiles = 0
        for exchange in round_.exchanges:
            ends = exchange.moves.ends(schedule.mesh)
            pairs = {(send, owner[recv]) for send, recv in zip(*ends, strict=True) if owner[send] != owner[recv]}
            tiles += len(pairs) * schedule.buffers[exchange.src.buffer].tile_bytes
        crossed.append(tiles)
    assert answers[0]["explicit"] == tuple(size for size in crossed if size)
    if name == "gemm-mesh":  # a rank fetches a tile once, while a shift passes it on in every round
        assert 0 < sum(answers[0]["elided"]) < sum(crossed)


def test_the_public_functions_run_on_ranks():
    torch.manual_seed(0)
    want, alone = mesh_gemm(torch.randn(7, 5), torch.randn(5, 6), mesh="2x3", record=True)
    for got, record in ranked.on_ranks(2, ranked.product):
        assert torch.equal(got, want)
        assert record.rank_bytes and str(record) != str(alone) and record.cost == alone.cost
        assert f"between ranks  {sum(record.rank_bytes):,} B in {len(record.rank_bytes)} rounds" in str(record)
        assert (record + alone).rank_bytes == record.rank_bytes and (record * 2).rank_bytes == record.rank_bytes * 2


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert isinstance(distributed.executor(), TorchExecutor)
    with pytest.raises(BackendError, match="there is no process group; start the ranks by torchrun"):
        DistributedExecutor(TorchExecutor())


def test_ranks_that_do_not_agree_are_refused_with_the_difference():
    want = [
        "the ranks do not agree: rank 1 has exchange = 'elided', rank 0 'explicit'; give all ranks the same options",
        "the ranks do not agree: rank 1 has shards = (2, 1), rank 0 (1, 2); give all ranks the same options",
        "shards 2x3 are not one rectangle for each of 2 ranks; give another",
        "the ranks do not agree: rank 1 has mesh = '3x2', rank 0 '2x2'; give all ranks the same options",
        "mesh 1x1 has 1 cores for 2 ranks; start no more, or take a larger mesh",
        "mesh 1x3 cannot be cut into 2 rectangles as 2x1, one for each rank: a side has too few cores; start another "
        "number of ranks, or take a larger mesh",
        "the ranks do not agree: rank 1 has other moves, operations or parameters of rms_norm [4, 4] than rank 0; "
        "give all ranks the same options",
        "the ranks do not agree: rank 1 has other values of operand b than rank 0; give all ranks the same values, if "
        "random by the same torch.manual_seed",
        "nothing",  # the bits of NaN are compared as well
    ]
    assert ranked.on_ranks(2, ranked.disagreements) == [want] * 2


@pytest.mark.parametrize(
    ("mesh", "ranks", "grid"), [("4x6", 2, (1, 2)), ("6x4", 2, (2, 1)), ("1x5", 4, (1, 4)), ("6x6", 6, (2, 3))]
)
def test_a_mesh_is_cut_where_the_fewest_cores_are(mesh, ranks, grid):
    cut = partition(as_mesh(mesh), ranks)
    assert sorted(cut.grid) == sorted(grid) and (cut.grid == grid or ranks == 6)
    sizes = np.bincount(cut.owner)
    assert len(sizes) == ranks and sizes.sum() == cut.mesh.cores
    for rank in range(ranks):
        share = Shard(cut, rank)
        assert (cut.owner[share.cores] == rank).all() and share.mesh.cores == sizes[rank]
        assert (cut.local_number[share.cores] == np.arange(sizes[rank])).all()


def test_logical_cores_of_a_core_stay_together():
    folded = Mesh(2, 3).square()
    owner = partition(folded, 3).owner.reshape(folded.shape)
    blocks = owner.reshape(2, 3, 3, 2).swapaxes(1, 2).reshape(6, 6)
    assert (blocks == blocks[:, :1]).all()


def test_seven_ranks_do_not_fit_four_by_six():
    with pytest.raises(MeshError, match="mesh 4x6 cannot be cut into 7 rectangles as 1x7, 7x1, one for each rank"):
        partition(as_mesh("4x6"), 7)
