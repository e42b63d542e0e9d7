"""Layers, weights and modes of torch that a converted model or an operation cannot take, and the remedy of each."""

import numpy as np
import pytest
import torch
from torch import nn

from wafer_triton import WaferError, convert


def test_convert_refuses_a_lazy_layer_before_its_first_run():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.LazyLinear(2)))
    with pytest.raises(WaferError) as error:
        convert(model, mesh=2)
    said = "convert: 1.0.weight of a LazyLinear has no shape before its first run; run the model once on an input, then"
    assert str(error.value).startswith(said)
    with pytest.raises(WaferError, match="weight of a LazyBatchNorm1d has no shape before its first run"):
        convert(nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d()), mesh=2)
    with pytest.raises(WaferError, match="convert: weight of a LazyLinear has no shape"):
        convert(nn.LazyLinear(2), mesh=2)
    model(torch.ones(3, 4))
    assert convert(model, mesh=2)(torch.ones(3, 4)).shape == (3, 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.data.mul_(2),
        lambda weight: np.multiply(weight.detach().numpy(), 2, out=weight.detach().numpy()),
    ],
)
def test_a_change_that_torch_does_not_count_waits_for_one_that_it_does(change):
    model, x = convert(nn.Sequential(nn.Linear(4, 4, bias=False)), mesh=2), torch.ones(3, 4)
    before = model(x)
    change(model[0].weight)
    assert torch.equal(model(x), before)
    with torch.no_grad():
        model[0].weight.add_(0)
    assert torch.equal(model(x), 2 * before)
