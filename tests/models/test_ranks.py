"""Models over ranks: layers in stages, meshes cut, the command line; tokens equal one process's."""

import signal
from math import prod

import pytest
import torch

import ranked
from schedules import ROOMY
from tiny import CONFIG, MIXTURE, checkpoint
from wafer_triton.cli.main import main
from wafer_triton.decoder import decode as blocks
from wafer_triton.decoder.block import Block, schedule
from wafer_triton.device.mesh import as_mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import BackendError
from wafer_triton.models.checkpoint.checkpoint import Checkpoint
from wafer_triton.models.checkpoint.weights import StoredWeights
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.place import cuts
from wafer_triton.models.place.cuts import fill
from wafer_triton.models.run.pipeline import PipelineStage, stage_count, stage_layers
from wafer_triton.place.need import param_shapes, weights_of
from wafer_triton.shape.read import shape_of

pytestmark = pytest.mark.slow

LLAMA = CONFIG | {"tie_word_embeddings": True}
QWEN = CONFIG | {"model_type": "qwen3", "num_attention_heads": 4, "num_key_value_heads": 2}
THREE = {"num_hidden_layers": 3}


@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        (
            2,
            [
                (LLAMA, "3", None, "explicit"),
                (QWEN, "2", (1, 2), "elided"),
                (MIXTURE | THREE, "2", None, "explicit"),
                (MIXTURE | THREE, "2", None, "explicit", "regions"),
            ],
        ),
        # three stages; one of three ranks
        (
            3,
            [
                (QWEN | THREE, "3", None, "explicit"),
                (LLAMA, "3", None, "elided"),
                (MIXTURE, "3", None, "elided"),
                (MIXTURE, "4", None, "elided", "regions"),
            ],
        ),
        (4, [(QWEN, "3", None, "explicit")]),  # two stages of two ranks
    ],
)
def test_models_on_ranks_equal_one_process(ranks, cases):
    assert ranked.on_ranks(ranks, ranked.models_wrong, cases) == [[]] * ranks


def test_each_rank_holds_its_part_and_all_draw_alike():
    config = LLAMA | {"num_hidden_layers": 6, "vocab_size": 64}
    (first, bytes_first, seed), (last, bytes_last, other) = ranked.on_ranks(2, ranked.held, config)
    ((_, alone, _),) = ranked.on_ranks(1, ranked.held, config)
    assert set(first) | set(last) == set(param_shapes(DecoderConfig.from_dict(config))) and not set(first) & set(last)
    assert max(bytes_first, bytes_last) <= 0.6 * alone
    assert seed == other and seed is not None


def placed(weights, block, part, buffers, here):
    """Return the tiles that `fill` puts on the cores `here`; unwritten memory is NaN."""
    sides, built = (
        [len(range(*cores.indices(100))) for cores in here],
        schedule(part, block, *(1,) * (part in (blocks.head, blocks.embed))),
    )
    memory = {name: torch.full((*sides, *built.buffers[name].tile), float("nan")) for name in buffers}
    fill(memory, buffers, weights, 0, block.mesh, here)
    return memory


@pytest.mark.parametrize("rows", [slice(0, 3), slice(3, 5)])
@pytest.mark.parametrize("cols", [slice(0, 1), slice(1, 4)])
@pytest.mark.parametrize("head_groups", [1, 2])
def test_a_rank_reads_the_slices_that_it_holds(rows, cols, head_groups, tmp_path, monkeypatch):
    weights = Checkpoint(checkpoint(tmp_path / "tiny")).weights()
    block = Block(weights.config, as_mesh("5x4", ROOMY), "fp32", "fp32", 3, head_groups=head_groups)
    parts = {
        kind: (part, weights_of(block, kind, "decode"))
        for kind, part in (
            ("attention", blocks.project), ("ffn", blocks.ffn), ("head", blocks.head), ("embedding", blocks.embed)
        )
    }  # fmt: skip
    read: list[int] = []
    every, part = dict(weights), StoredWeights.part
    monkeypatch.setattr(cuts, "LARGE", 200)  # numbers at once: one band of cores after another
    monkeypatch.setattr(
        StoredWeights, "part", lambda self, *which: (read.append(part(self, *which).numel()), part(self, *which))[1]
    )
    monkeypatch.setattr(StoredWeights, "__getitem__", lambda self, name: pytest.fail(f"all of {name} was read"))
    for name, (made, buffers) in parts.items():
        whole = placed(every, block, made, buffers, (slice(0, 5), slice(0, 4)))
        for buffer, tiles in placed(weights, block, made, buffers, (rows, cols)).items():
            assert torch.equal(tiles, whole[buffer][rows, cols]), (name, buffer)
    assert sum(read) < 0.75 * sum(prod(shape) for name, shape in weights.shapes.items() if "layers.1" not in name)
    assert max(read) < 0.6 * prod(weights.shapes["lm_head.weight"])


def test_stages_are_as_even_as_layers_let_them_be():
    untied = DecoderConfig.from_dict(CONFIG | {"num_hidden_layers": 9, "vocab_size": 16})
    assert stage_layers(untied, 3) == [0, 3, 6, 9]
    tied = DecoderConfig.from_dict(CONFIG | {"num_hidden_layers": 9, "tie_word_embeddings": True, "vocab_size": 512})
    ends = stage_layers(tied, 3)
    assert ends[0] == 0 and ends[-1] == 9 and ends[3] - ends[2] == 1  # the table lies beside the last
    assert stage_layers(tied, 3, cached=8192) == [0, 3, 6, 9]  # but is little beside long caches


def test_ranks_go_to_layers_first():
    assert [stage_count(3, ranks, None) for ranks in (1, 2, 3, 4, 6, 7)] == [1, 2, 3, 2, 3, 1]
    assert stage_count(30, 8, (1, 2)) == 4
    for layers, ranks in ((30, 3), (2, 8)):
        with pytest.raises(
            BackendError, match=f"shards 1x2: {ranks} ranks cannot form stages of 2 ranks each for {layers} lay"
        ):
            stage_count(layers, ranks, (1, 2))


def test_a_refused_prompt_leaves_no_message_between_ranks():
    first, last = ranked.on_ranks(2, ranked.refused)
    expected = ["token 999 is outside", "holds 2 tokens", "sequence 2: the model", "99 tokens", "the prompt is empty"]
    assert first == last and first[-1] is True
    assert all(word in message for word, message in zip(expected, first[:-1], strict=True)), first


def test_ranks_of_a_model_agree_on_what_it_generates():
    differ = (
        "prompts = [[1, 3]], rank 0 [[1, 2]]",
        "max_new_tokens = 3, rank 0 2",
        "stop = {4}, rank 0 {3}",
        "seed = 1, rank 0 0",
        "mesh = '3x3', rank 0 '2x2'",
    )
    want = [f"the ranks do not agree: rank 1 has {each}; give all ranks the same options" for each in differ]
    weights = (
        "the ranks do not agree: rank 1 has other values of operand model.layers.0.self_attn.k_proj.weight than rank "
        "0; give all ranks the same values, if random by the same torch.manual_seed"
    )
    assert ranked.on_ranks(2, ranked.apart) == [[*want, weights, "nothing"]] * 2


def test_rank_0_prints_and_an_error_is_printed_once(tmp_path, capsys):
    folder, bare = checkpoint(tmp_path / "tiny"), checkpoint(tmp_path / "bare")
    for file in bare.glob("tokenizer*"):
        file.unlink()
    model = ["--model", str(folder), "--mesh", "2"]
    commands = [
        ["generate", *model, "--prompt", "hello", "--max-new-tokens", "4"],
        ["generate", *model, "--prompt", "hello", "--max-new-tokens", "400"],
        ["generate", *model, "--prompt", "hello", "--shards", "3x1"],
        ["generate", "--model", str(bare), "--mesh", "2", "--prompt", "hello"],
    ]
    ours, others = ranked.on_ranks(2, ranked.commanded, *commands)
    for command, (code, out, err), (other, nothing, errors) in zip(commands, ours, others, strict=True):
        assert main(command) == code == other or "--shards" in command
        alone = capsys.readouterr()
        assert nothing == ""
        if code:
            assert sorted([err, errors]) == ["", alone.err] or "--shards" in command
        else:
            assert errors == "" and _counted(out) == _counted(alone.out)
    where = "emulated on 2 ranks, each on the CPU by torch, exchange explicit\n"
    messages = {rank[2][2].removeprefix(where) for rank in (ours, others)}
    assert messages == {"", "wafer-triton: error: shards 3x1: 2 ranks cannot form stages of 3 ranks each for 2 "
                            "layers; give other shards, or none\n"}  # fmt: skip
    assert "no tokenizer there (tokenizer.json)" in ours[3][2] + others[3][2]
    assert capsys.readouterr().err == "" and main(commands[2]) == 2
    assert "shards 3x1 are for 3 ranks, and there is one; use torchrun" in capsys.readouterr().err


@pytest.mark.parametrize(("ranks", "lost"), [(2, 0), (3, 1)])  # two stages; a mesh in three pieces
def test_a_rank_that_is_killed_ends_all_and_is_named(ranks, lost, tmp_path):
    command = ["generate", "--model", str(checkpoint(tmp_path / "tiny")), "--mesh", "3", "--prompt", "hello"]
    results, codes = ranked.ended(ranks, ranked.cut_off, command, lost, signal.SIGKILL, lost=lost)
    survivors = [result for result in results if result is not None]
    assert codes[lost] == -signal.SIGKILL and len(survivors) == ranks - 1 and sum(codes) == codes[lost]
    assert {code for code, _, _ in survivors} == {2}
    said = [err.splitlines()[-1] for _, _, err in survivors if "error:" in err]
    assert said == [
        f"wafer-triton: error: rank {lost} of {ranks} is gone, so the others cannot go on; see its output, and start "
        f"all again"
    ]


def test_ctrl_c_ends_all_ranks(tmp_path):
    command = ["generate", "--model", str(checkpoint(tmp_path / "tiny")), "--mesh", "2", "--prompt", "hello"]
    results, codes = ranked.ended(2, ranked.cut_off, command, -1, signal.SIGINT)
    assert codes == [0, 0] and [code for code, _, _ in results] == [130, 130]
    assert "interrupted after" in results[0][2] and results[1][1:] == ("", "")


def _counted(out: str) -> list[str]:
    """Return the output of a command, without times."""
    return [line for line in out.splitlines() if "emulat" not in line and "seconds" not in line]


@pytest.mark.parametrize(
    ("number", "wanted"), [(0, "r0 r1 r2 = r3 = = ="), (1, "r0 r1 = r2 = r3 = ="), (2, "r0 = r1 = r2 = r3 =")]
)
def test_a_stage_asks_for_a_result_when_the_last_has_it(number, wanted):
    """Check three stages: while the first runs an item, each later one runs an earlier item."""
    events: list[str] = []

    def run(item: int):
        events.append(f"r{item}")
        return lambda: torch.tensor(item)

    stage = PipelineStage(shape_of("smollm2-135m"), TorchExecutor(), range(3), "fp32", number, 3)
    for place, result in enumerate(stage.flow(range(4), lambda item: None, run)):
        events.append("=")
        assert result == place
    assert " ".join(events) == wanted
