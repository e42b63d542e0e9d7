"""A Markdown table of a results file: python bench/report.py bench/results/cpu.json"""

import json
import sys
from pathlib import Path

FACTS = ("what", "mesh", "tile", "dtype", "exchange", "rounds")


def table(results: dict) -> str:
    """One row a benchmark; times are emulation times of the machine that the last line names."""
    lines = [(*FACTS, "median (ms)", "per second"), ["---"] * len(FACTS) + ["---:", "---:"]]
    for one in results["benchmarks"]:
        seconds, facts = one["stats"]["median"], one["extra_info"]
        lines.append([*(str(facts.get(fact, "")) for fact in FACTS), f"{seconds * 1e3:.3g}", f"{1 / seconds:,.1f}"])
    machine = results["machine_info"]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    where = f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores used, torch {machine['torch']}"
    return f"{rows}\n\nEmulation time on {where}."


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
