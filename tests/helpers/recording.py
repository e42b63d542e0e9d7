"""A CUDA graph on the CPU: the operations of a run are recorded, and a replay repeats them on the same tensors.

As CUDA does, a recording refuses that the host reads a value or brings in a tensor that was not there before.
"""

import gc
from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from wafer_triton.emulate.torch import TorchExecutor

READS = (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal)


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def addresses() -> set[int]:
    """Return the addresses of all tensors that the garbage collector follows."""
    return {address(it) for it in gc.get_objects() if type(it) in (torch.Tensor, torch.nn.Parameter)}


@cache
def early() -> frozenset[int]:
    """Return the addresses before the first recording, and exempt all objects of then from later searches."""
    found = frozenset(addresses())
    gc.freeze()
    return found


class Recorder(TorchDispatchMode):
    """Records the operations that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.done, self.before = [], {}
        self.known = addresses() | early()  # a set, which grows in place

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function.overloadpacket in READS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {function}")
        given = [it for it in tree_flatten((args, kwargs))[0] if isinstance(it, torch.Tensor)]
        if any(address(it) not in self.known for it in given if it.numel()):
            raise RuntimeError(f"a tensor of the host comes in while a graph is recorded: {function}")
        for it in given:  # a recording computes nothing, so memory is put back at its end
            if address(it) not in self.before:
                self.before[address(it)] = it.untyped_storage(), it.untyped_storage().clone()
        out = function(*args, **kwargs)
        results = [it for it in tree_flatten(out)[0] if isinstance(it, torch.Tensor)]
        self.known |= {address(it) for it in results}
        self.done.append((function, args, kwargs, results, {address(it) for it in given}))
        return out

    def __exit__(self, *why):
        super().__exit__(*why)
        for storage, values in self.before.values():
            storage.copy_(values)

    def replay(self) -> None:
        for function, args, kwargs, results, given in self.done:
            if function.is_view:
                continue
            now = [it for it in tree_flatten(function(*args, **kwargs))[0] if isinstance(it, torch.Tensor)]
            for held, new in zip(results, now, strict=True):
                if address(held) not in given:
                    held.copy_(new)


class Operators(TorchDispatchMode):
    """Counts the operators of torch that run inside, views left out."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


class RecordingExecutor(TorchExecutor):
    """The torch executor, which records compiled steps at their first call; `log` lists records and replays.

    Steps that follow other schedules are run anew, as torch has no index tables that a record could follow.
    """

    graphs = True

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.log, self.compiled = [], []

    def precompile(self, steps, progress=None) -> int:
        self.compiled += steps
        for number in range(len(steps)):
            progress(number + 1, len(steps))
        return len(steps)

    def capture(self, run, compiled=False):
        recorder = None

        def step():
            nonlocal recorder
            if not compiled:
                self.log.append("run")
                run()
                return
            if recorder is None:
                self.log.append("record")
                with Recorder() as made:
                    run()
                recorder = made
            self.log.append("replay")
            recorder.replay()

        return step
