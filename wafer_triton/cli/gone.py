"""Commands and options that went in 0.2, with what answers instead; for one release the parser says so in one line."""

from __future__ import annotations

# What a user typed after `wafer-triton`, such as "train" or "estimate energy".
COMMANDS: dict[str, str] = {
    "bench": "`compare gemm --time 1` times a product, and gemv likewise",
    "compare schedule": "write `compare FILE.py:FUNCTION`",
    "draw schedule": "write `draw FILE.py:FUNCTION`",
    "draw validation": "write `validate --out validation.png`",
    "draw model": "generate --regions lists the regions, a schedule has its pictures",
    "estimate batch": "`estimate decode --batch 4` prices a turn of it",
    "estimate cap": "`estimate decode --routing uniform` has MoE-CAP's measures",
    "estimate energy": "an energy is power times seconds; every estimate of a token or a request has its own",
    "estimate gemm": "`estimate product` prices it, with --m",
    "estimate gemv": "`estimate product` prices it, without --m",
    "fit": "`validate --fit` fits the constants, on your own measurements too",
    "estimate kv": "`estimate decode` without --context says how much the cache holds",
    "explain": "give `estimate` of the same --explain",
    "perplexity": "call wafer_triton.models.precision.perplexity(model, ids)",
    "precision": "compare wafer_triton.models.precision.perplexity of a model in each dtype",
    "reproduce": "`validate --table 3` is a table of the paper, `--table all` is all of them",
    "show": "`draw` with an --out that ends in .html writes the page",
    "show model": "generate --regions lists the regions, `draw` has pages of schedules",
    "show record": "generate --json is the record",
    "show request": "estimate request has its times",
    "sweep batch": "`sweep decode` takes batch=4",
    "sweep cap": "`sweep decode` takes routing=uniform",
    "sweep kv": "`sweep decode` without context sweeps how much the cache holds",
    "train": "it trained one toy model; docs/temp.md runs a streamed product with values, `plan-training` plans a step",
}
OF_A_MODEL = "estimate decode, estimate prefill, estimate request, plan"
# Each with the commands that had it.
OPTIONS: dict[str, tuple[str, str]] = {
    "--against": ("sweep", "the CSV of a sweep has all columns"),
    "--as-if": (
        "estimate decode, estimate prefill, estimate request",
        "a model that does not fit has no time; `wafer-triton plan` searches meshes that fit",
    ),
    "--cache": ("serve", "it could reserve room for an answer of known length; caches always grow and preempt now"),
    "--copies": (
        "generate, estimate prefill, estimate request, plan",
        "give --experts regions, where every expert has one region",
    ),
    "--cv": ("serve", "it made bursts; give a trace of your own by --requests"),
    "--dim": (OF_A_MODEL, "give --model dim=2048,ffn=8192,heads=32,kv_heads=8,layers=16"),
    "--draw": ("serve", "give --json, which has the numbers of the picture"),
    "--ffn": (OF_A_MODEL, "give --model dim=2048,ffn=8192,heads=32,kv_heads=8,layers=16"),
    "--hardware-price": ("cap", "the cost of a run is its energy a token"),
    "--heads": (OF_A_MODEL, "give --model dim=2048,ffn=8192,heads=32,kv_heads=8,layers=16"),
    "--kv-heads": (OF_A_MODEL, "give --model dim=2048,ffn=8192,heads=32,kv_heads=8,layers=16"),
    "--kwh-price": ("cap", "the cost of a run is its energy a token"),
    "--layers": (OF_A_MODEL, "give --model dim=2048,ffn=8192,heads=32,kv_heads=8,layers=16"),
    "--lifetime-hours": ("cap", "the cost of a run is its energy a token"),
    "--order": ("serve", "it let short prompts begin first; first come is first served now"),
    "--out": ("cap, plan-training", "there is no picture any more; --json has its numbers"),
    "--pause": ("serve", "users went; give --rate or --requests"),
    "--perplexity": ("cap", "give --accuracy"),
    "--picture": ("sweep", "a sweep draws one picture, its curves"),
    "--program": (
        "estimate decode, estimate prefill, estimate request, plan",
        "a model's own program is priced; `validate --table` prices the one of the paper",
    ),
    "--prompt": ("check", "`--tokens` judges prefill of a prompt"),
    "--rate": ("plan", "it was of `plan --slo`; `serve --rate` simulates requests at a rate"),
    "--round": ("draw", "the page of --out a.html has the tiles of every round"),
    "--routing": (
        "generate, estimate prefill, estimate request, plan",
        "it was for copies of hot experts; `estimate decode --routing` stays",
    ),
    "--set": (
        f"estimate product, {OF_A_MODEL}, compare, check, draw, generate, serve, validate",
        "give --device wse2,hop_cycles=2",
    ),
    "--no-plot": ("sweep", "a picture is written where --out names one, such as --out a.png"),
    "--show": ("devices", "write `devices NAME`"),
    "--slo": (
        "plan",
        "its plan missed the best goodput by 8 to 10 times; `serve --slo` counts the goodput of a policy",
    ),
    "--sweep": ("serve", "run it for each value; --json has the figures"),
    "--trace": (
        "draw, serve",
        "`draw --out run.json` writes the trace of a schedule, `serve --out run.csv` the times of each request",
    ),
    "--trim": (
        "estimate decode, estimate prefill",
        "a phase takes its whole mesh; a mesh of fewer rows has less padding",
    ),
    "--users": ("serve", "users went; give --rate or --requests"),
    "--write": ("validate", "give --out page.md"),
}
