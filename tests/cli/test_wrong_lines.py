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
DECODE = "sweep decode --set model=smollm2-135m --set mesh=64"
PLAN = "plan --model llama3-8b --input 1 --output 1"

LINES = {
    "": [
        ("", "give a command; see `wafer-triton --help`"),
        ("fly", 'Unknown command "fly"'),
        ("--fly", 'Unknown command "--fly"'),
        ("devices --device wse2", "Unknown option: --device. See `wafer-triton devices --help`"),
        ("devices wse4", "unknown device 'wse4'; did you mean 'wse"),
        ("devices wse2,link_bytes_per_cycle=1e-300", "link_bytes_per_cycle = 1e-300 must be a number from 1e-09 to"),
        ("cap", "give the files of runs"),
        ("cap run.json --watts 0", 'Invalid value "0.0" for --watts. Must be > 0.'),
        ("cap run.json --watts x", "value for --watts: unable to convert"),
        ("cap run.json --accuracy nan", "--accuracy nan is not a finite number"),
        ("cap run.json --accuracy 1 --accuracy 2", "2 times --accuracy for 1 runs; give one for each"),
        ("validate --fit --out own.py/x", "own.py/x: Not a directory; give another path"),
        ("validate --out own.py/x/y.md", "own.py/x/y.md: No such file or directory; give another"),
        (f"{PLAN} --step 0", 'Invalid value "0" for --step'),
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
        (f"{PRODUCT} 97x101", "or a square mesh such as 97x97"),
        (f"{PRODUCT} 2 --mesh 3", "Parameter --mesh specified multiple times. See"),
        (f"{PRODUCT} 8 --routes 3", "option: --routes. Did you mean --groups? See `wafer-t"),
        (f"{PRODUCT} 4 --device WSE2", "unknown device 'WSE2'"),
        (f"{PRODUCT} 4 --device wse2,hop_cycels=3", "did you mean 'hop_cycles'?"),
        (f"{PRODUCT} 4 --device wse2,5", "'5' is no number; write KEY=VALUE"),
        ("product --m 8 --k 8 --n 8 --mehs 2", "Give --mesh. No option or argument takes '--mehs 2'. See"),
        ("product --m 99999999999999 --k 1 --n 1 --mesh 4", 'Invalid value "99999999999999" for --m. Must be <='),
        ("product --m 0 --k 1 --n 1 --mesh 4", 'Invalid value "0" for --m. Must be > 0.'),
        ("decode --model llama3-8b --mesh 360 --context 1.5", "Invalid value for --context: '1.5' is no whole"),
        ("decode --model llama3-8b --mesh 360 --context 4 --head-groups 41", "32 query heads on 360 columns take a"),
        ("decode --model llama3-8b --mesh 360 --context 8 --routing 1.5", "llama3-8b has no experts, so that"),
        ("decode --model olmoe-1b-7b --mesh 360 --context 9 --batch 1000000 --routing uniform", "batch = 1,000,000 is"),
        ("decode --model mixtral-8x7b --mesh 360 --context 8", "46,702,792,704 weights take 93,405,585,408 B in fp16"),
        ("decode --model smollm2-135m --mesh 8 --context 8 --experts regions", "estimate decode --help`"),
        ("decode --model smollm2-135m --mesh 64 --dtype fp32", "dtype fp32 is not supported; use one of fp16, bf16"),
        ("decode --model '' --mesh 4", "model ''"),
        ("decode --model none/config.json --mesh 4", "none/config.json: there is no such file or folder"),
        ("decode --model meta-llama/Llama-3.1-8B --mesh 4", "is no folder here, and names on a hub are not fetched"),
        ("decode --model dim=8,ffn=8,heads=3,layers=1 --mesh 4", "dim = 8 is not a multiple of heads = 3"),
        ("decode --model /proc/self/mem --mesh 4", "/proc/self/mem: Input/output error"),
        ("decode --model /dev/null --mesh 4", "error: /dev/null: is no regular file"),
        ("prefill --model olmoe-1b-7b --mesh 9 --tokens 9 --experts 4", 'Invalid value "4" for --experts. Choose from'),
    ],
    "compare": [
        ("gem --m 3", "gem: give gemm, gemv or FILE.py:FUNCTION"),
        ("gemm --k 8 --mesh 4", "give --m, --n of gemm"),
        ("gemm --m 9 --k 9 --n 9 --mesh 499x503", "at most 2,048 a side and 256 on a core are taken"),
        ("gemm --m 100000 --k 100000 --n 100000 --mesh 64 --values", "30,000,000,000 numbers are more than"),
        ("gemm --m 1000000 --k 1000000 --n 1000000 --mesh 1", "a core would hold more than a TiB"),
        ("gemv --k 1000000000 --n 1000000000 --mesh 1", "numbers"),
        ("gemm --m \u0664 --k 1 --n 1 --mesh 1_0", "mesh '1_0'"),
        ("gemm --values --no-values", "--no-values specified multiple times"),
        ("gemv --k 4 --n 4 --mesh 0", "must be a whole number of at least 1"),
        (f"{GEMV} --m 3", "--m: only for gemm"),
        (f"{GEMV} --algorithm ring", "--algorithm: only for --time"),
        ("own.py:f --mesh 8", "--mesh: only for gemm and gemv"),
        ("own.py:f --time 1", "--time: only for gemm and gemv"),
        ("gemv --k 16 --n 16 --time 1", "give --mesh of gemv"),
        (f"{GEMM} --dtype int8 --time 1", "int8 is a storage of a model's weights"),
        (f"{GEMM} --time -1", 'Invalid value "-1.0" for --time'),
        (f"{GEMM} --time 1 --no-values", "--values: beside --time the product is always computed"),
        (f"{GEMV} --algorithm mesh --time 1", "choose one of ktree"),
    ],
    "check": [
        ("", "give one of them: --model NAME|PATH for a decoder, or FILE.py:FUNCTION"),
        ("schedule own.py:f", "No option or argument takes 'own.py:f'. See `wafer-triton check --help`"),
        ("own.py:f --model llama3-8b", "give one of them"),
        ("own.py:f --mesh 4", "--mesh: only for --model; a schedule has a mesh"),
        ("--model .", ".: no config.json"),
        ("--model llama3", "unknown model 'llama3'; did you mean 'llama3"),
        ("--model smollm2-135m --mesh 751", "leaves device wse2"),
        ("--model smollm2-135m --mesh 31x37 --tokens 8", "mesh 31x37: products of matrices fold it"),
        ("--model smollm2-135m --tokens 1000000000", "a layer of smollm2-135m on mesh 16x16: a core would hold"),
        ("--model smollm2-135m --context 9999999999", 'Invalid value "9999999999" for --context'),
    ],
    "draw": [
        (GEMM, "Give --out. See"),
        (f"{GEMM} --out x.gif", "x.gif: does not end in .png, .svg, .pdf, .html, .json"),
        (f"{GEMM} --out nowhere/x.png", "nowhere/x.png: No such file or directory; give another path"),
        (f"{GEMM} --out a.json --out ./a.json", "--out 2 a.json: is written as --out 1 already"),
        (f"{GEMM} --algorithm strassen --out a.png", "strassen"),
        (f"{GEMM} --beside strassen --out page.html", "strassen"),
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
        ("own.py:nothing --picture timeline --out a.png", "a timeline of a schedule without rounds: there is nothing"),
        ("own.py:nothing --out page.html", "a page of a schedule without rounds has nothing to show; add a round"),
        ("own.py:nothing --beside mesh --out page.html", "mesh: give FILE.py:FUNCTION, where the function returns"),
        ("gemm --m 64 --k 64 --n 64 --mesh 64 --values --out page.html", "tiles, more than the 300,000 that a page"),
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
        (f"{OPEN} --columns 7", "columns = 7 of prefill: only policy split has columns of its own; leave it out"),
        (f"{OPEN} --policy split --columns 994", "columns = 994 of prefill: wse2 has 994, and decode needs"),
        (f"{OPEN} --policy split --columns 950", "950 of them for prefill"),
        (f"{OPEN} --context 10", "no request is served: "),
        (f"{OPEN} --at-once 8", "--at-once 8: a group has no more sequences than --batch 4"),
        (f"{OPEN} --chunk 0", 'Invalid value "0" for --chunk'),
        (f"{LENGTHS} --rate 9999 --count 99", "rate 9,999: requests come faster than they are served, at most "),
        (f"{LENGTHS} --rate -1", 'Invalid value "-1.0" for --rate'),
        (f"{LENGTHS} --rate 1 --count 10000000", "more than the 1,000,000 requests"),
        ("--input 1.5 --output 3 --rate 1", "length '1.5': write 512 or 64:1024"),
        ("--input 0 --output 3 --rate 1", "length '0': tokens = 0 must be a whole number of at least 1"),
        ("--rate 1 --input 10000000 --output 2 --chunk 1", "--chunk 1: the prompts go in 10,000,000,000 chunks"),
    ],
    SWEEP: [
        ("", "Give --over. See"),
        ("--over mesh", "--over 'mesh': write NAME=A,B,... or NAME=FROM:TO:STEP"),
        ("--over mesh=20:10:5", "'mesh=20:10:5': FROM:TO:STEP counts upwards, and 20 is more than 10"),
        ("--over mesh=1:2", "'mesh=1:2': write NAME=FROM:TO:STEP with three numbers"),
        ("--over mesh=8:16:0", "'mesh=8:16:0': STEP is 0, and FROM:TO:STEP counts upwards; give mo"),
        ("--over mesh=16:4:-4", "'mesh=16:4:-4': STEP is -4, and FROM:TO:STEP counts upwards"),
        ("--over mesh=4:16:nan", "'mesh=4:16:nan': write NAME=FROM:TO:STEP with three numbers ('nan' is no finite"),
        ("--over mesh=0:100000:1", "'mesh=0:100000:1': that is more than 10,000 values; take a larger STEP"),
        ("--over mesh=8,nan", "'mesh=8,nan': 'nan' is no value; write finite numbers or words, as A,B,C"),
        ("--over k=1e400", "'k=1e400': 'inf' is no value"),
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
        ("--over mesh=8 --device wse9", "unknown device 'wse9'; did you mean"),
        ("--over meshes=8", "cannot sweep 'meshes'; did you mean 'mesh'?"),
        ("--over mesh=8 --over groups=2 --over hop_cycles=1", "at most two parameters beside device and model"),
        ("--over mesh=1:200:1 --over hop_cycles=1:200:1", "a sweep of 200 x 200 = 40,000 points: at most 10,000 are"),
        ("--over mesh=8 --set k=48 --show x", "--show x: there is no such column; columns: cycles, "),
        ("--over mesh=8 --out q.txt", "--out q.txt: does not end in .csv, .png, .svg, .pdf"),
        ("--over mesh=8 --out /", "--out /: does not end in .csv"),
        ("--over mesh=8 --out /nowhere/x.csv", "/nowhere/x.csv: No such file or directory"),
        ("--over mesh=8 --set k=48 --out /dev/full", "/dev/full: No space left on device"),
        ("--over k=1.5 --set mesh=8", "k = 1.5"),
        ("--over k=-16,0 --set mesh=8", "k = -16"),
        ("--over groups=1,2 --set mesh=8 --set k=0", "k = 0 must be a whole number of at least 1"),
        ("--over groups=999 --set mesh=8 --set k=64", "groups"),
        ("--over hop_cycles=1e300 --set mesh=8 --set k=48", "hop_cycles = 1e+300"),
    ],
    DECODE: [
        ("--over context=8 --set head_groups=x", "head_groups = 'x', but 9 query heads"),
        ("--over head-groups=0 --set context=8", "head_groups = 0, but 9 query heads on 64 columns"),
    ],
    "plan-training": [
        ("--workload gpt5", "unknown training workload 'gpt5'"),
        ("--workload ''", "unknown training workload ''"),
        ("--workload llama2-7b --config x", "--workload llama2-7b: --config x stands in its place; give one of them"),
        ("--wafer wafer-9", "unknown wafer 'wafer-9'"),
        ("--failed 0,0", "give two neighbouring dies by row and column, such as 0,0-0,1"),
        ("--failed 0,0-0,1 --failed 0,0-1,0", "failed links isolate 1 of 48 dies"),
        ("--failed 0,0-2,2", "is not between neighbouring dies"),
        ("--wafer wafer-32 --wafers 5", "32 layers do not divide by 5 wafers"),
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
