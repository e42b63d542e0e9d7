"""Commands and options that went in 0.2, with what answers instead; for one release the parser says so in one line."""

from __future__ import annotations

# What a user typed after `wafer-triton`, such as "train" or "estimate energy".
COMMANDS: dict[str, str] = {
    "draw model": "generate --regions lists the regions, a schedule has its pictures",
    "estimate energy": "an energy is power times seconds; every estimate of a token or a request has its own",
    "perplexity": "call wafer_triton.models.precision.perplexity(model, ids)",
    "precision": "compare wafer_triton.models.precision.perplexity of a model in each dtype",
    "show model": "generate --regions lists the regions, `show` has pages of schedules",
    "show record": "generate --json is the record",
    "show request": "estimate request has its times",
    "train": "it trained one toy model; docs/temp.md runs a streamed product with values, `plan-training` plans a step",
}
OPTIONS: dict[str, str] = {
    "--against": "the CSV of a sweep has all columns",
    "--cache": "of `serve` it could reserve room for an answer of known length; caches always grow and preempt now",
    "--copies": "give --experts regions, where every expert has one region",
    "--cv": "of `serve` it made bursts; give a trace of your own by --requests",
    "--draw": "give --json, which has the numbers of the picture",
    "--as-if": "a model that does not fit has no time; smallest_mesh(...) and what_fits(...) search what fits",
    "--hardware-price": "the cost of a run is its energy a token",
    "--kwh-price": "the cost of a run is its energy a token",
    "--lifetime-hours": "the cost of a run is its energy a token",
    "--order": "of `serve` it let short prompts begin first; first come is first served now",
    "--out": "`plan-training` and `cap` draw no picture; --json has their numbers",
    "--pause": "of `serve` users went; give --rate or --requests",
    "--perplexity": "give --accuracy",
    "--program": "a model's own program is priced; `reproduce` prices the one of the paper",
    "--picture": "a sweep draws one picture, its curves",
    "--rate": "it was of `plan --slo`; `serve --rate` simulates requests at a rate",
    "--round": "`show` has the tiles of every round",
    "--slo": "its plan missed the best goodput by 8 to 10 times; `serve --slo` counts the goodput of a policy",
    "--sweep": "of `serve`: run it for each value; --json has the figures",
    "--trace": "of `serve` it wrote a run for Perfetto; --out has the times of each request",
    "--trim": "a phase takes its whole mesh; a mesh of fewer rows has less padding",
    "--users": "of `serve` users went; give --rate or --requests",
}
