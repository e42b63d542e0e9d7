"""A mixture's passes in `generate --json`, its routing trace, and `cap` over several runs."""

import json

import pytest

from commands import answer, refused
from tiny import MIXTURE, checkpoint
from wafer_triton.cli.main import main

RUN = """{"cap": {"decode": {"tokens_per_second": 9, "s_mbu": 0.5}}, "device": "wse2",
"predicted": {"decode": {"joules_per_token": 2}}}""".replace("\n", "")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return two runs of a tiny mixture on meshes of different size, and the trace of the second."""
    home = tmp_path_factory.mktemp("runs")
    folder = checkpoint(home / "tiny", base=MIXTURE)
    return home, folder


@pytest.mark.slow
def test_records_of_runs_have_passes_and_are_compared(runs, capsys):
    home, folder = runs
    for mesh in ("2", "3"):
        asked = ["--model", str(folder), "--prompt", "hello", "--mesh", mesh, "--max-new-tokens", "4", "--json"]
        asked += ["--experts", "regions" if mesh == "2" else "spread"]
        assert main(["generate", *asked, "--routing-out", str(home / f"trace{mesh}.json")]) == 0
        (home / f"run{mesh}.json").write_text(capsys.readouterr().out)
    record = json.loads((home / "run2.json").read_text())
    prefill, *decode = record["passes"]
    assert (prefill["mode"], prefill["tokens"], len(decode)) == ("prefill", 5, 3)
    assert [each["kv_tokens"] for each in decode] == [6, 7, 8]
    assert all(each["distinct_experts"] == [2] for each in decode), "one layer of two has experts"
    assert record["experts"].startswith("2 x 2 regions, ") and prefill["region_passes"] >= 1
    assert prefill["overflow_rows"] >= 0 and "region_passes" not in decode[0]
    assert sum(prefill["tokens_per_expert"][0].values()) == 5 * 2
    for phase, each in (("prefill", [prefill]), ("decode", decode)):
        seconds = sum(one["seconds"] for one in each)
        assert record["cap"][phase]["seconds"] == pytest.approx(seconds)
        assert record["predicted"][phase]["seconds"] == pytest.approx(seconds)
    assert record["cap"]["decode"]["s_mbu"] < record["cap"]["decode"]["mbu"]
    trace = json.loads((home / "trace2.json").read_text())["experts"]
    assert (len(trace), len(trace[0])) == (1, 8) and {len(taken) for taken in trace[0]} == {2}
    assert trace == json.loads((home / "trace3.json").read_text())["experts"], "the mesh does not change the expert ids"

    line = f"cap {home}/run2.json {home}/run3.json"
    found, _ = answer(f"{line} --accuracy 0.5 --accuracy 0.4", capsys)
    first, second = found["runs"]
    faster = first["tokens_per_second"] > second["tokens_per_second"]
    assert [place["performance"] for place in found["scaled"]] == [float(faster), float(not faster)]
    assert [place["accuracy"] for place in found["scaled"]] == [1.0, 0.0]
    seconds = 1 / first["tokens_per_second"]
    cheaper = first["joules_per_token"] < second["joules_per_token"]
    assert [place["cost"] for place in found["scaled"]] == [float(cheaper), float(not cheaper)]
    assert answer(f"{line} --watts 9", capsys)[0]["runs"][0]["joules_per_token"] == 9 * seconds


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (
            "Paris\n",
            "not valid JSON (Expecting value: line 1 column 1 (char 0)); give the last line of `generate --json`",
        ),
        ('{"cap": 1, "cap": 2}', "key 'cap' is given twice; give it once"),
        ('{"experts": [[[1, 3]]]}', "no record of a run"),
        *((RUN.replace("9", speed), "no record of a run") for speed in ("0", "-3", "null", '"9"', "Infinity", "1e308")),
        *(
            (RUN.replace("0.5", share), "no record of a run")
            for share in ("-3", '"x"', "NaN", "1e308", "1" + "0" * 400)
        ),
        (RUN.replace("2}", "1" + "0" * 400 + "}"), "no record of a run"),
    ],
    ids=range(15),
)
def test_what_is_no_record_is_refused(text, fact, tmp_path, capsys):
    (tmp_path / "run").write_text(text)
    assert fact in refused(f"cap {tmp_path}/run", capsys)


def test_what_is_a_record_is_shown(tmp_path, capsys):
    (tmp_path / "run").write_text(RUN)
    (row,) = answer(f"cap {tmp_path}/run", capsys)[0]["runs"]
    assert (row["tokens_per_second"], row["s_mbu"], row["joules_per_token"]) == (9, 0.5, 2)
