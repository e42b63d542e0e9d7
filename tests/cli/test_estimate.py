"""The output of `estimate`, `plan` and `sweep`: units for people, full numbers for programs; and their errors."""

import csv
import re
import shlex

import pytest

from commands import answer
from wafer_triton.cli.main import main
from wafer_triton.cost import estimate

DECODE = "estimate decode --model llama3-8b --mesh 360 --context 4096"
SWEEP = "sweep gemv --set k=48 --set n=48"
NUMBER = r"(?:\+-|-)?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?"
COUNTED = (
    "cycles",
    "rounds",
    "hops",
    "routes",
    "layers",
    "groups",
    "regions",
    "products",
)  # units that end the name of a figure


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command line in a folder of its own: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def command(line):
        return main(shlex.split(line)), *capsys.readouterr()

    return command


@pytest.mark.parametrize(
    "line",
    [
        "estimate product --device wse3 --mesh 72 --m 576 --k 72 --n 576",
        "estimate product --mesh 96x48 --k 720 --n 720 --groups 4",
        DECODE,
        "estimate prefill --model smollm2-135m --mesh 64 --tokens 512",
        "estimate training --model smollm2-135m --mesh 120 --tokens 128",
    ],
    ids=lambda line: line.split()[1],
)
def test_every_number_of_an_estimate_is_short_and_has_a_unit(run, line):
    code, out, _ = run(line)
    title, *lines = out.splitlines()
    assert code == 0 and "predicted on the wafer" in title and len(lines) > 2
    texts = ("constants ", "beyond the measurements ", "bound by ")
    for shown in lines:
        if shown.startswith((*texts, 8 * " ")) or " cycles by compare, " in shown or "  " not in shown:  # goes on
            continue
        *label, value = re.split("  +", shown.strip())
        if re.fullmatch(r"\d+x\d+", value):  # cores, a mesh
            continue
        if not re.match(NUMBER, value):
            assert not re.search(r"\d", value), shown
            continue
        number, unit = re.fullmatch(rf"({NUMBER})(?: (\D+))?", value).groups()
        assert unit or label[0].split()[-1] in COUNTED, shown
        assert not label[0].endswith(f" {unit}") and label[0] != unit, "the unit is there once"
        assert len(number.replace(",", "").replace(".", "").strip("+-0")) <= 4, shown


def test_json_holds_full_numbers(capsys):
    found, text = answer(DECODE, capsys)
    exact = estimate.decode(model="llama3-8b", mesh=360, context=4096)
    assert found["cycles_per_layer"] == exact.cycles_per_layer and "tokens/s" in text


def test_head_groups_may_be_asked_for(capsys):
    (best, _), (forced, shown) = (answer(f"{DECODE} {more}", capsys) for more in ("", "--head-groups 8"))
    assert best["head_groups"] == 16 and forced["head_groups"] == 8
    assert best["cycles_per_layer"] < forced["cycles_per_layer"] and best["padding"] <= forced["padding"]
    assert shown.splitlines()[0].endswith("context 4,096 tokens, head groups 8")
    assert re.search(r"^head groups +8$", shown, re.MULTILINE)
    assert re.search(r"^multiply-adds over the model's +1\.\d+ x$", shown, re.MULTILINE)
    prefill = "estimate prefill --model smollm2-135m --mesh 100 --tokens 64"
    for line, number in ((prefill, 4), ("check --model smollm2-135m --mesh 24", 3)):
        assert answer(f"{line} --head-groups {number}", capsys)[0]["head_groups"] == number


def test_a_sweep_has_units_for_people_and_full_numbers_in_its_csv(run, tmp_path):
    code, out, _ = run(f"{SWEEP} --over mesh=24,48 --out x.csv")
    title, head, _, *rows, written = out.splitlines()
    assert (code, written) == (0, "written: x.csv")
    assert title == "gemv over mesh, predicted on the wafer: k 48 elements, n 48 elements"
    assert head.split()[:2] == ["mesh", "cycles"] and "time" in head
    assert re.match(r"24 x 24 cores +[\d,.]+ ", rows[0]) and re.search(r" [\d.]+ (us|ns) ", rows[0])
    with (tmp_path / "x.csv").open() as lines:
        exact = [estimate.gemv(mesh=int(row["mesh"]), k=48, n=48).seconds == float(row["seconds"])
                 for row in csv.DictReader(lines)]  # fmt: skip
    assert exact == [True, True]
