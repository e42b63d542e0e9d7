"""docs/gpu.md: measured figures equal the committed results."""

import re
from pathlib import Path

import report

PAGE = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
RESULTS = report.load(Path(report.__file__).parents[1] / "results" / "nvidia-h200-80873d0.json")
PLAIN = [row for row in RESULTS["benchmarks"] if row["extra_info"]["exchange"] in ("emulation", "blas", "copy")]


def section(title):
    """Return the text below a heading, up to the next."""
    return re.split(r"^#+ ", PAGE.partition(f"# {title}\n")[2], flags=re.MULTILINE)[0]


def of(group, row, digits=0):
    """Return a measured row in microseconds, as the page writes it."""
    rows = (one for one in RESULTS["benchmarks"] if one["group"] == group)
    seconds = next(one["stats"]["median"] for one in rows if one["extra_info"]["exchange"] == row)
    return f"{seconds * 1e6:,.{digits}f}"


def known(unit, *names):
    """Measured numbers beside the rows, as the page writes them."""
    found = [one for name in names for one in RESULTS["others"] if one["case"] == name]
    assert len(found) == len(names) and {one["unit"] for one in found} == {unit}
    return " to ".join(f"{one['value']:,}" for one in found)


def gemm(side, tile):
    return f"gemm [{side * tile}, {side * tile}] x [{side * tile}, {side * tile}] on {side} x {side} cores, bf16"


def test_the_table_is_measured():
    measured = report.beside(RESULTS).splitlines()
    shown = [line for line in section("Measured at 80873d0").splitlines() if line.count("|") == measured[0].count("|")]
    assert len(shown) > 12 and [line for line in shown if line not in measured] == []
    assert shown[0] == measured[0] and f"The whole table, {len(RESULTS['benchmarks']) - len(PLAIN)} rows" in PAGE


def test_the_machine_and_the_commit_are_named():
    assert report.machine(RESULTS).replace("NVIDIA H200, ", "") in PAGE.replace("\n", " ")
    assert f"at commit {RESULTS['commit']}" in PAGE and "NVIDIA H200 (132 multiprocessors, 60 MB of L2)" in PAGE
    facts = RESULTS["machine_info"]
    assert (facts["gpu"], facts["sms"], facts["l2_bytes"]) == ("NVIDIA H200", 132, 60 * 2**20)


def test_the_constants_are_the_measured_ones():
    text = section("Measured at 80873d0")
    for unit, *names in (
        ("TB/s", "copy in HBM, read and write, least", "copy in HBM, read and write, most"),
        ("TB/s", "exchange within the L2, least", "exchange within the L2, most"),
        ("TFLOP/s", "bf16 matrix rate, least", "bf16 matrix rate, most"),
        ("us", "a launch of 435,600 programs of next to nothing"),
        ("us", "a launch outside a graph, time of the host"),
    ):
        assert f"| {known(unit, *names)} {unit} |" in text
    hops = {row["extra_info"]["hops"]: row["stats"]["median"] for row in RESULTS["benchmarks"]
            if "hops" in row["extra_info"]}  # fmt: skip
    assert f"trees of {', '.join(map(str, hops))} hops take" in text
    assert (
        f"take {', '.join(f'{one * 1e6:.1f}' for one in hops.values())} us | {(hops[11] - hops[1]) * 1e5:.1f} us |"
        in text
    )


def test_the_wrong_results_equal_the_run_s():
    text, failed = section("Wrong at 80873d0"), RESULTS["failed"]
    wrong = {case: re.search(r"(\d+) elements wrong", why) for case, why in failed.items()}
    for case in ("gemm-8192x8192x8192-on32-bf16-explicit", "gemm-8192x8192x8192-on64-bf16-explicit"):
        assert f"{int(wrong[case][1]):,} on" in text
    names = (f"explicit MeshGEMM 4096^3 on 32 x 32, elements wrong, {end}" for end in ("least", "most"))
    assert f"{known('elements', *names)} elements wrong" in text
    assert 6600 <= int(wrong["gemm-4096x4096x4096-on32-bf16-explicit"][1]) <= 9700
    for side, size in ((660, 1320), (720, 1440)):
        assert failed[f"gemm-{size}x{size}x{size}-on{side}-bf16-explicit"] == "no result after 90 s"
        assert f"{side} x {side}" in text
    assert failed["layers32-llama3-8b-held4095-on64-bf16-elided"] in text
    assert f"| {known('tests', 'tests/gpu, failed')} failed" in text


def test_the_times_equal_the_run_s():
    text = section("Fast and slow at 80873d0")
    big, small = gemm(64, 128), gemm(16, 64)
    vector, shifts = (
        "gemv [1, 4096] x [4096, 14336] on 64 x 64 cores, bf16",
        "8 ring shifts on 660 x 660 cores, tiles of",
    )
    moved = [of(f"{shifts} 4 x 4, bf16", row) for row in ("explicit", "emulation", "copy")]
    rounds = f"plain PyTorch, round by round, {of(small, 'emulation')} us"
    for line in (
        f"8192^3 on 64 x 64 | {of(big, 'elided')} us | cuBLAS {of(big, 'blas')} us |",
        f"1024^3 on 16 x 16 | {of(small, 'explicit')} us | {rounds} |",
        f"14336] on 64 x 64 | {of(vector, 'explicit')} us | cuBLAS {of(vector, 'blas')} us |",
        f"elided MeshGEMV, the same | {of(vector, 'elided')} us | cuBLAS {of(vector, 'blas')} us |",
        f"| {moved[0]} us | plain PyTorch {moved[1]} us, a plain copy {moved[2]} us |",
    ):
        assert line in text
    layer, graph = "Llama-3-8B decode layer, 4,096 tokens held", "plain PyTorch in a graph"
    plain = known("us", f"{layer}, {graph}")
    for exchange in ("explicit", "elided"):
        assert f"{exchange} | {known('us', f'{layer}, 64 x 64 cores, {exchange}')} us | {graph} {plain} us |" in text
    for size, side, exchange in ((1024, 16, "elided"), (4096, 64, "explicit")):
        call, inside = (
            known("ms", f"mesh_gemm {size}^3 on {side} x {side}, {exchange}, {what}")
            for what in ("a warm public call", "its kernels")
        )
        assert f"{exchange} | {call} ms | its kernels {inside} ms |" in text
    prefill = "prefill of 256 tokens, SmolLM2's sizes on 24 x 24"
    assert f"{known('launches', f'{prefill}, launches')} launches | {known('ms', prefill)} ms | " in text
    assert f"its kernels {known('ms', f'{prefill}, its kernels')} ms |" in text
    step = "decode step, SmolLM2's sizes on 24 x 24, explicit, a graph"
    eager = "decode step, a model of SmolLM2's sizes, transformers eager, bf16"
    assert f"| {known('ms', step)} ms | transformers eager, bf16, {known('ms', eager)} ms |" in text
    assert f"first prefill | {known('s', 'first prefill, least', 'first prefill, most')} s" in text
    elided = known("s", "first decode step, elided, least", "first decode step, elided, most")
    assert f"explicit {known('s', 'first decode step, explicit')} s, elided {elided} s" in text
    model = "SmolLM2-135M, 24 x 24 cores, fp32, explicit"
    assert f"all {known('tokens', f'{model}: tokens of the demo')} tokens" in text
    assert f"difference was {known('', f'{model}: largest logit difference to transformers')}." in text
