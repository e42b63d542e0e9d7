"""docs/how-it-works.md: figures of a GPU equal the committed results, and the kernel shown is the one file's."""

import re
from pathlib import Path

import report

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
RESULTS = report.load(Path(report.__file__).parents[1] / "results" / "nvidia-h200-80873d0.json")
FAILED = RESULTS["failed"]


def microseconds(group, row):
    """Return a measured row as the page writes it, "" if there is none."""
    found = [one for one in RESULTS["benchmarks"] if one["group"] == group and one["extra_info"]["exchange"] == row]
    return report._us(found[0]["stats"]["median"]) if found else ""


def known(case, unit):
    """Return a number that was measured beside the rows."""
    ((value, measured_in),) = [(one["value"], one["unit"]) for one in RESULTS["others"] if one["case"] == case]
    assert measured_in == unit
    return f"{value:,}"


def test_the_machine_and_the_commit_are_named():
    facts = RESULTS["machine_info"]
    assert (facts["gpu"], facts["sms"], facts["l2_bytes"]) == ("NVIDIA H200", 132, 60 * 2**20)
    assert "NVIDIA H200 (132 multiprocessors, 60 MB of L2)" in TEXT
    assert report.machine(RESULTS).replace("NVIDIA H200, ", "") in TEXT and f"at commit {RESULTS['commit']}" in TEXT


def test_the_table_of_a_gpu_is_measured():
    rows = re.findall(r"^\| (gem[mv] \[.*) \| (.*) \| (.*) \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for case, explicit, *others in rows:
        group = f"{case}, bf16"
        assert others == [microseconds(group, row) for row in ("elided", "blas", "emulation")]
        if explicit != "wrong":
            assert explicit == microseconds(group, "explicit")
    assert "elements wrong" in FAILED["gemm-8192x8192x8192-on64-bf16-explicit"]
    assert [explicit for _, explicit, *_ in rows].count("wrong") == 1 and rows[2][0].startswith("gemm [8192, 8192]")


def test_what_was_slow_or_wrong_is_in_the_results():
    wrong = re.search(r"(\d+) elements wrong", FAILED["gemm-8192x8192x8192-on32-bf16-explicit"])
    assert f"{int(wrong[1]):,} of an 8192^3 product on 32 x 32 cores" in TEXT
    for side, size in ((660, 1320), (720, 1440)):
        assert FAILED[f"gemm-{size}x{size}x{size}-on{side}-bf16-explicit"] == "no result after 90 s"
    assert FAILED["layers32-llama3-8b-held4095-on64-bf16-elided"] == "no result after 50 s"
    call, prefill = "mesh_gemm 1024^3 on 16 x 16, elided", "prefill of 256 tokens, SmolLM2's sizes on 24 x 24"
    whole, kernels = known(f"{call}, a warm public call", "ms"), known(f"{call}, its kernels", "ms")
    assert f"took {whole} ms, of which its kernels took {kernels} ms" in TEXT
    whole, kernels = known(prefill, "ms"), known(f"{prefill}, its kernels", "ms")
    assert f"took {whole} ms, of which its kernels took {kernels} ms" in TEXT
    step = "decode step, 32 layers, llama3-8b after 4095 tokens on 64 x 64 cores, bf16"
    assert f"| {step} | explicit | 20,431 |  | 6,848 |" in report.beside(RESULTS)
    assert "took 20,431 us with explicit exchange, and 6,848 us in plain PyTorch" in TEXT


def test_what_was_right_is_in_the_results():
    model = "SmolLM2-135M, 24 x 24 cores, fp32, explicit"
    assert f"all {known(f'{model}: tokens of the demo', 'tokens')} tokens of the demo" in TEXT
    assert f"difference was {known(f'{model}: largest logit difference to transformers', '')}." in TEXT


def test_the_kernel_shown_is_the_one_file_s():
    one_file = (DOCS / "examples" / "one_file.py").read_text(encoding="utf-8")
    (kernel,) = re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert kernel.startswith("@triton.jit\ndef one_round(") and kernel in one_file
    assert f"one Triton file of {len(one_file.splitlines())} lines" in TEXT
