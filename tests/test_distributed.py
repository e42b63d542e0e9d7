"""Ranks that cannot start."""

import pytest
import torch
import torch.distributed as dist

from wafer_triton import distributed
from wafer_triton.errors import BackendError


def test_ranks_without_a_launcher_s_rank_number_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(BackendError, match=r"the ranks cannot join over gloo \(.* RANK .*\); start them by torchrun"):
        distributed.executor(emulate_on="cpu")


def test_each_rank_has_a_gpu_of_its_node(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    chosen = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 5)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BackendError, match="rank 5: this node has 1 GPUs; start no more ranks than GPUs on it"):
        distributed.executor(emulate_on="cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(distributed.executors, "executor", lambda backend, exchange, device: device)
    monkeypatch.setattr(distributed, "DistributedExecutor", lambda inside, shards: inside)
    assert [distributed.executor(emulate_on="cuda")] == ["cuda:1"] == [f"cuda:{number}" for number in chosen]
