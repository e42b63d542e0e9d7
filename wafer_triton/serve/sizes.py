"""The sizes of serving: meshes, columns of the device and full caches, given or chosen by the priced schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from wafer_triton.cost.inference import answer_steps
from wafer_triton.cost.placement import checked
from wafer_triton.device import Device, DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.device.mesh import as_mesh
from wafer_triton.errors import MeshError, WaferError
from wafer_triton.serve import places
from wafer_triton.serve.load import LEFT_TO_PRICES, Given, Load
from wafer_triton.serve.pipeline import group_sizes, period
from wafer_triton.serve.policies import organisation
from wafer_triton.serve.times import Priced
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import shape_of
from wafer_triton.text.progress import Progress, reported, silent


def priced(
    name: str, model: str | DecoderShape, on: DeviceLike, load: Load, given: Given = LEFT_TO_PRICES,
    progress: Progress = silent,
) -> Priced:  # fmt: skip
    """Return times of a model on a device under an organisation, by its name in `policies.ORGANISATIONS`.

    Sizes that are not given are searched: the mesh of "shared", the columns of "split". The placement has the most
    requests a second of the mean request, see `rate`. Raises ConfigError for an unknown organisation, SramError or
    MeshError, with the last reason, if nothing fits. Reports "places" to `progress`.
    """
    organisation(name)
    shape, device = shape_of(model), find_device(on)
    checked(given.experts, shape)
    places.check_weights(shape, device)
    found = _organised(name, shape, device, load, given, progress)
    found.organisation = name
    return found


def _organised(name: str, shape: DecoderShape, device: Device, load: Load, given: Given, progress: Progress) -> Priced:
    """Return the times under a known organisation."""
    if name == "split":
        where, remedy = f"{shape.name} in columns of {device.name}", ""
        if given.columns is not None:
            where += f", {given.columns} of them for prefill"
            remedy = "; leave the columns out for the best"
        return _by_rate(where, places.splits(shape, device, load, given), load, progress, remedy)
    if given.columns is not None:
        raise MeshError(f"columns = {given.columns} of prefill: only policy split has columns of its own; leave it out")
    if name == "shared":
        mesh = given.decode_mesh if given.prefill_mesh is None else given.prefill_mesh
        if given.decode_mesh is not None and as_mesh(given.decode_mesh, device) != as_mesh(mesh, device):
            raise MeshError(
                f"prefill on {mesh} and decode on {given.decode_mesh}: policy shared has one mesh; give one"
            )
        makes = (partial(places.together, on, shape, load, given) for on in places.meshes(device, mesh))
        return _by_rate(f"{shape.name} on one mesh of {device.name}", makes, load, progress)
    prefills, decodes = list(places.meshes(device, given.prefill_mesh)), list(places.meshes(device, given.decode_mesh))
    block = places.fastest_decode(decodes, shape, load, given)
    firsts = places.fastest_prefill(prefills, shape, load, given)
    return next(places.fitting(partial(places.together, on, shape, load, given, block) for on in firsts))


def rate(times: Priced, load: Load) -> float:
    """Return the approximate number of mean requests a second, if all resources were always busy."""
    stages = times.stages(load.input, 0, True)
    sequences = min(times.batch, max(1, times.pool * times.rows // (load.input + load.output)))
    entries = min(-(-(load.input + load.output // 2) // times.rows), times.pool)
    groups = min(sequences, -(-times.batch // times.at_once))
    turn = period(times, [[entries] * size for size in group_sizes(sequences, groups)])
    answers = answer_steps(load.output) * turn / sequences
    if times.right is not None:
        return 1 / max(max(stages), answers)
    return 1 / (max(stages) + (sum(stages) + 2 * times.switch()) / sequences + times.hand_over(load.input) + answers)


def _by_rate(
    what: str, makes: Iterable[Callable[[], Priced]], load: Load, progress: Progress, remedy: str = ""
) -> Priced:
    """Return the times with the highest rate; if no placement fits, raise the last error."""
    found, reason = list[tuple[float, Priced]](), None
    for make in reported("places", makes, progress):
        try:
            times = make()
            found.append((rate(times, load), times))
        except WaferError as error:
            reason = places.nearer(reason, error)
    if not found:
        assert reason is not None, "a mesh is tried"
        raise type(reason)(f"no place was found for {what}; of the nearest: {reason}{remedy}")
    return max(found, key=lambda each: each[0])[1]
