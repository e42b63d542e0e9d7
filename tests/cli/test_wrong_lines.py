"""Lines that are refused: exit code 2 and one line on stderr with the fact, before anything slow; no file is written.

A line of a schedule of one's own is in `test_own`, of a checkpoint in `test_generate`.
"""

import pytest

from commands import refused

OWN = """
from wafer_triton import Builder, Mesh

def nothing():
    return Builder(Mesh(2, 2), "nothing").build()
"""
GEMM, GEMV = "gemm --m 16 --k 16 --n 16 --mesh 4", "gemv --k 16 --n 16 --mesh 4"
PRODUCT = "product --m 64 --k 64 --n 64 --mesh"
LENGTHS = "--input 50:150 --output 5:40"
OPEN = f"{LENGTHS} --rate 2 --count 30"
SERVE = "serve --model smollm2-135m --prefill-mesh 100 --decode-mesh 100 --batch 4"
SWEEP = "sweep gemv --set n=48"
PLAN = "plan --model llama3-8b --input 1 --output 1"

LINES = {
    "": [
        ("", "give a command; see `wafer-triton --help`"),
        ("fly", 'Unknown command "fly"'),
        ("--fly", 'Unknown command "--fly"'),
        ("devices --device wse2", "Unknown option: --device. See `wafer-triton devices --help`"),
        ("devices wse4", "unknown device 'wse4'; did you mean 'wse"),
        ("cap", "give the files of runs"),
        ("cap run.json --watts 0", 'Invalid value "0.0" for --watts. Must be > 0.'),
        ("cap run.json --watts x", "value for --watts: unable to convert"),
        ("cap run.json --accuracy nan", "--accuracy nan is not a finite number"),
        ("cap run.json --accuracy 1 --accuracy 2", "2 times --accuracy for 1 runs; give one for each"),
        ("validate --fit --out own.py/x", "own.py/x: Not a directory; give another path"),
        ("validate --out own.py/x/y.md", "own.py/x/y.md: No such file or directory; give another"),
        (f"{PLAN} --step 0", 'Invalid value "0" for --step'),
        (
            "sweep decode --set model=smollm2-135m --set mesh=64 --over context=8 --set head_groups=x",
            "head_groups = 'x', but 9 query heads",
        ),
        (f"{PLAN} --head-groups 33", "head_groups = 33, but 32 query heads on 740"),
    ],
    "generate": [
        ("", "Give --model. See `wafer-triton generate --help`"),
        ("--model", "--model requires an argument. See `wafer-triton generate --help`"),
        ("--model '' --prompt a", "checkpoint ''"),
        ("--model none/x --prompt a", "none/x: there is no such folder"),
        ("--model llama3-8b --prompt a", "llama3-8b: its shape is known, its weights are not"),
        ("--model x --prompt 'a\udce9b'", "--prompt 'a\\udce9b': is not UTF-8 text (at character 1)"),
        ("--model x --prompt a --routing-out notes.md", "--routing-out notes.md: does not end in .json"),
        ("--model x --prompt a --routing-out /nodir/p.json", "/nodir/p.json: No such file or directory"),
        ("--model x --prompt a --profile /nodir/p.json", "/nodir/p.json: No such file or directory"),
    ],
    "estimate": [
        ("fly", "See `wafer-triton estimate --help`"),
        (f"{PRODUCT} 2 --mesh 3", "Parameter --mesh specified multiple times. See"),
        (f"{PRODUCT} 8 --routes 3", "option: --routes. Did you mean --groups? See `wafer-t"),
        ("product --m 8 --k 8 --n 8 --mehs 2", "Give --mesh. No option or argument takes '--mehs 2'. See"),
        ("product --m 99999999999999 --k 1 --n 1 --mesh 4", 'Invalid value "99999999999999" for --m. Must be <='),
        ("product --m 0 --k 1 --n 1 --mesh 4", 'Invalid value "0" for --m. Must be > 0.'),
        ("decode --model llama3-8b --mesh 360 --context 1.5", "Invalid value for --context: '1.5' is no whole"),
        ("decode --model llama3-8b --mesh 360 --context 8 --routing 1.5", "llama3-8b has no experts, so that"),
        ("decode --model olmoe-1b-7b --mesh 360 --context 9 --batch 1000000 --routing uniform", "batch = 1,000,000 is"),
        ("decode --model smollm2-135m --mesh 8 --context 8 --experts regions", "estimate decode --help`"),
        ("decode --model '' --mesh 4", "model ''"),
        ("decode --model none/config.json --mesh 4", "none/config.json: there is no such file or folder"),
        ("decode --model meta-llama/Llama-3.1-8B --mesh 4", "is no folder here, and names on a hub are not fetched"),
        ("decode --model /proc/self/mem --mesh 4", "/proc/self/mem: Input/output error"),
        ("decode --model /dev/null --mesh 4", "error: /dev/null: is no regular file"),
        ("prefill --model olmoe-1b-7b --mesh 9 --tokens 9 --experts 4", 'Invalid value "4" for --experts. Choose from'),
    ],
    "compare": [
        ("gem --m 3", "gem: give gemm, gemv or FILE.py:FUNCTION"),
        ("gemm --k 8 --mesh 4", "give --m, --n of gemm"),
        ("gemm --m 100000 --k 100000 --n 100000 --mesh 64 --values", "30,000,000,000 numbers are more than"),
        ("gemv --k 1000000000 --n 1000000000 --mesh 1", "numbers"),
        ("gemm --values --no-values", "--no-values specified multiple times"),
        (f"{GEMV} --m 3", "--m: only for gemm"),
        (f"{GEMV} --algorithm ring", "--algorithm: only for --time"),
        ("own.py:f --mesh 8", "--mesh: only for gemm and gemv"),
        ("own.py:f --time 1", "--time: only for gemm and gemv"),
        ("gemv --k 16 --n 16 --time 1", "give --mesh of gemv"),
        (f"{GEMM} --time -1", 'Invalid value "-1.0" for --time'),
        (f"{GEMM} --time 1 --no-values", "--values: beside --time the product is always computed"),
    ],
    "check": [
        ("", "give one of them: --model NAME|PATH for a decoder, or FILE.py:FUNCTION"),
        ("schedule own.py:f", "No option or argument takes 'own.py:f'. See `wafer-triton check --help`"),
        ("own.py:f --model llama3-8b", "give one of them"),
        ("own.py:f --mesh 4", "--mesh: only for --model; a schedule has a mesh"),
        ("--model .", ".: no config.json"),
        ("--model smollm2-135m --tokens 1000000000", "a layer of smollm2-135m on mesh 16x16: a core would hold"),
        ("--model smollm2-135m --context 9999999999", 'Invalid value "9999999999" for --context'),
    ],
    "draw": [
        (GEMM, "Give --out. See"),
        (f"{GEMM} --out x.gif", "x.gif: does not end in .png, .svg, .pdf, .html, .json"),
        (f"{GEMM} --out nowhere/x.png", "nowhere/x.png: No such file or directory; give another path"),
        (f"{GEMM} --out a.json --out ./a.json", "--out 2 a.json: is written as --out 1 already"),
        (f"{GEMM} --algorithm strassen --out a.png", "strassen"),
        (f"{GEMM} --values --out a.png", "--values: only for a page"),
        (f"{GEMM} --beside cannon --out a.png", "--beside: only for a page or a trace"),
        (f"{GEMM} --picture timeline --out a.html", "--picture: only for a picture"),
        (f"{GEMM} --size 4 --out a.png", "--size: only for all-reduce"),
        ("gemm --m 8 --mesh 4 --out a.png", "give --k, --n of gemm"),
        (f"{GEMV} --m 8 --out a.png", "--m: only for gemm"),
        ("all-reduce --mesh 4 --out a.png", "give --size of all-reduce"),
        ("all-reduce --k 8 --size 4 --mesh 4 --out a.png", "--k: only for gemm and gemv"),
        ("summa --out a.png", "draw summa: give gemm, gemv, all-reduce or FILE.py:FUNCTION"),
        ("own.py:nothing --mesh 4 --out a.png", "--mesh: only for gemm, gemv and all-reduce"),
        ("own.py:nothing --picture compare --out a.png", 'Invalid value "compare" for --picture'),
        ("own.py:nothing --beside mesh --out page.html", "only an Intent says; return (Schedule, Intent)"),
    ],
    SERVE: [
        ("", "give --requests FILE, or lengths by --input and --output"),
        (LENGTHS, "give --rate, at which requests arrive, or --requests FILE"),
        ("--requests missing.csv", "missing.csv"),
        (f"{OPEN} --requests x.csv", "--input, --output: a trace has lengths and arrivals; leave"),
        (f"{OPEN} --requests x.csv --out x.csv", "--out x.csv: is read as --requests already"),
        (f"{OPEN} --out config.json", "--out config.json: does not end in .csv"),
        (f"{OPEN} --policy wafer", 'Invalid value "wafer" for --policy'),
        (f"{OPEN} --policy split --turns 3", "--turns: says when a shared mesh changes its phase"),
        (f"{OPEN} --slo fast", "SLO 'fast': 'fast' is no bound; write ttft=200ms,tpot=1ms, one or both"),
        (f"{OPEN} --policy split --columns 950", "950 of them for prefill"),
        (f"{OPEN} --at-once 8", "--at-once 8: a group has no more sequences than --batch 4"),
        (f"{OPEN} --chunk 0", 'Invalid value "0" for --chunk'),
        (f"{LENGTHS} --rate 9999 --count 99", "rate 9,999: requests come faster than they are served, at most "),
        (f"{LENGTHS} --rate -1", 'Invalid value "-1.0" for --rate'),
        ("--rate 1 --input 10000000 --output 2 --chunk 1", "--chunk 1: the prompts go in 10,000,000,000 chunks"),
    ],
    SWEEP: [
        ("", "sweep gemv: add --over NAME=A,B,..., such as device=wse2,wse3 or hop_cycles=0.5,1,2"),
        ("--over mesh", "--over 'mesh': write NAME=A,B,... or NAME=FROM:TO:STEP"),
        ("--over mesh=20:10:5", "'mesh=20:10:5': FROM:TO:STEP counts upwards, and 20 is more than 10"),
        ("--over mesh=1:2", "'mesh=1:2': write NAME=FROM:TO:STEP with three numbers"),
        ("--over mesh=8:16:0", "'mesh=8:16:0': STEP is 0, and FROM:TO:STEP counts upwards; give mo"),
        ("--over mesh=4:16:nan", "'mesh=4:16:nan': write NAME=FROM:TO:STEP with three numbers ('nan' is no finite"),
        ("--over mesh=0:100000:1", "'mesh=0:100000:1': that is more than 10,000 values; take a larger STEP"),
        ("--over mesh=8,nan", "'mesh=8,nan': 'nan' is no value; write finite numbers or words, as A,B,C"),
        ("--over mesh=8,8", "sweep over mesh: 8 comes twice; give each value once"),
        ("--over mesh=8 --over mesh=9", "--over mesh=9: mesh is swept already; give its values once"),
        ("--over mesh=8 --set mesh=3", "--set mesh=3: mesh takes its values from --over; leave it out"),
        ("--over=--mesh=8 --set=--mesh=3", "mesh takes its values from --over"),
        ("--over mesh=8 --set groups", "--set 'groups': write NAME=VALUE"),
        ("--over mesh=8 --set =5", "--set '=5': write NAME=VALUE"),
        ("--over mesh=8 --set groups=2 --set groups=3", "--set groups=3: it is set already; give it once"),
        ("--over mesh=8 --set device=wse3", "--set device=wse3: use --device"),
        ("--over mesh=8 --device wse2 --over device=wse3", "--device beside --over device=...: give the devices once"),
        ("--over mesh=8 --over device=wse2,wse2 --set k=48", "sweep over device: wse2 comes twice"),
        ("--over meshes=8", "cannot sweep 'meshes'; did you mean 'mesh'?"),
        ("--over mesh=8 --over groups=2 --over hop_cycles=1", "at most two parameters beside device and model"),
        ("--over mesh=1:200:1 --over hop_cycles=1:200:1", "a sweep of 200 x 200 = 40,000 points: at most 10,000 are"),
        ("--over mesh=8 --set k=48 --show x", "--show x: there is no such column; columns: cycles, "),
        ("--over mesh=8 --out q.txt", "--out q.txt: does not end in .csv, .png, .svg, .pdf"),
        ("--over mesh=8 --out /nowhere/x.csv", "/nowhere/x.csv: No such file or directory"),
        ("--over mesh=8 --set k=48 --out /dev/full", "/dev/full: No space left on device"),
        ("--over k=1.5 --set mesh=8", "k = 1.5"),
    ],
    "plan-training": [
        ("--workload gpt5", "unknown training workload 'gpt5'"),
        ("--workload llama2-7b --config x", "--workload llama2-7b: --config x stands in its place; give one of them"),
        ("--failed 0,0-2,2", "is not between neighbouring dies"),
        ("--failed 0,0", "give two neighbouring dies by row and column, such as 0,0-0,1"),
        ("--link-rate -1", 'Invalid value "-1.0" for --link-rate'),
    ],
}


@pytest.mark.parametrize(
    ("line", "fact"), [(f"{command} {rest}".strip(), fact) for command, rows in LINES.items() for rest, fact in rows]
)
def test_a_wrong_line_is_refused(line, fact, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    assert fact in refused(line, capsys)
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == ["own.py"]
