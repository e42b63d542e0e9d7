"""Count sentences of the project that are hard to read, and hold the counts to a budget that only falls.

Read are docstrings, comments, messages, help texts and test names of Python files, and the prose of Markdown files.
`python tests/helpers/english.py` fails where a rule has more offenders in a folder than `english.json` allows.
`--write` lowers the budget to the counts; `--list RULE [FOLDER]` prints the offenders.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BUDGET = Path(__file__).with_suffix(".json")
FOLDERS = ("wafer_triton", "kernels", "models", "tests", "bench", "docs", ".")
LONGEST = 25  # words of a sentence

# each pattern is looked for in a sentence of lower-case letters; the example shows a text that the rule is for
WORDS = {
    "so many": r"\bso (many|much|few)\b(?! that)",  # "it takes so many rounds"
    "tells": r"\b(tells?|told|telling)\b",  # "the kernel tells its neighbour"
    "nobody": r"\b(nobody|somebody|everybody|whoever)\b",  # "memory that nobody wrote"
    "behind": r"\bbehind\b",  # "the copies behind the last round"
    "of whom": r"\b(of|to|from|by|for) whom\b",  # "the tile of whom"
    "those of": r"\b(those|that) of\b",  # "the sums are those of the rows"
    "knows": r"\b(knows?|looks?|sees|wants?|thinks?)\b(?! (up|like)\b)",  # "the plan knows its buffers"
    "on the way": r"\b(on|along) (the|its|their) way\b",  # "sums on the way"
    "what": r"\bwhat\b(?!.*\?$)",  # "what lies there is added"
}
RULES = (*WORDS, "long sentence", "docstring without a verb")
# a docstring of a function begins with a verb phrase: no article, no pronoun, no plural, no third person
NO_VERB = (
    r"(the|an?|all|both|every\w*|each|any|one|two|another|its?|this|these|those|they|what|whether|how|where|which|when"
    r"|who|of|in|at|by|with|for|from|no|not|as|if|\w*[^\Ws]s)\b"
)


class Text(NamedTuple):
    """A text of a file, the line where it begins, and whether it is the docstring of a function, properties apart."""

    text: str
    line: int
    function: bool = False


class Offence(NamedTuple):
    """A sentence that breaks a rule."""

    rule: str
    path: str
    line: int
    sentence: str


def python_texts(source: str) -> Iterator[Text]:
    """Yield the docstrings, messages and test names of Python source, and each block of comments as one text."""
    tree = ast.parse(source)
    documented = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                function = isinstance(node, ast.FunctionDef)
                documented[id(first.value)] = function and "property" not in ast.dump(ast.List(node.decorator_list))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield Text(node.name.replace("_", " "), node.lineno)
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            yield Text("".join(p.value if isinstance(p, ast.Constant) else "X" for p in node.values), node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield Text(node.value * (" " in node.value.strip()), node.lineno, documented.get(id(node), False))
    block: list[str] = []
    began = last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|fmt:|!|mypy|ruff)", token.string):
            # lines of comments are one text; a comment beside code stands alone
            if block and (token.start[0] != last + 1 or not token.line.lstrip().startswith("#")):
                yield Text(" ".join(block), began)
                block = []
            began = began if block else token.start[0]
            block.append(token.string.lstrip("# "))
            last = token.start[0]
    if block:
        yield Text(" ".join(block), began)


def markdown_texts(source: str) -> Iterator[Text]:
    """Yield paragraphs, list items and table cells of Markdown, without fenced code."""
    fenced, block, began = False, [], 0
    for number, line in enumerate([*source.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        starts = not line.strip() or fenced or re.match(r"\s*([-*|#>]|\d+\.|```|<)", line)
        if starts and block:
            yield Text(" ".join(block), began)
            block = []
        if fenced or not line.strip() or line.lstrip().startswith(("```", "<")):
            continue
        if line.lstrip().startswith("|"):
            yield from (Text(cell.strip(), number) for cell in line.strip().strip("|").split("|"))
            continue
        began = began if block else number
        block.append(line.strip().lstrip("-*#> "))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text; a semicolon, a colon, a bullet, an empty line and a table's cell end one, too."""
    text = re.sub(r"`[^`]*`", "X", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for part in re.split(r"\n\s*\n|\n\s*[-*] |\s\|\s|(?<=[.?!;:])\s+", text):
        yield " ".join(part.split())


def offences(path: str, texts: Iterator[Text]) -> Iterator[Offence]:
    """Yield the offences of a file's texts."""
    for text, line, function in texts:
        if function and re.match(NO_VERB, text.strip().lower()):
            yield Offence("docstring without a verb", path, line, text.strip().split("\n")[0])
        for sentence in sentences(text):
            lower = sentence.lower()
            for rule, pattern in WORDS.items():
                for _ in re.finditer(pattern, lower):
                    yield Offence(rule, path, line, sentence)
            if len(re.findall(r"[A-Za-z][\w'-]*", sentence)) > LONGEST:
                yield Offence("long sentence", path, line, sentence)


def found(root: Path = ROOT) -> Iterator[tuple[str, Offence]]:
    """Yield (folder, offence) of the project's files."""
    for folder in FOLDERS:
        paths = (root / folder).glob("*.md") if folder == "." else (root / folder).rglob("*")
        for path in sorted(paths):
            if path.name in ("english.py", "test_english.py") or path.suffix not in (".py", ".md"):
                continue
            texts = python_texts if path.suffix == ".py" else markdown_texts
            for offence in offences(str(path.relative_to(root)), texts(path.read_text(encoding="utf-8"))):
                yield folder, offence


def broken(counts: dict[str, dict[str, int]], budget: dict[str, dict[str, int]]) -> list[str]:
    """Return a line for each rule and folder whose count differs from its budget."""
    lines = []
    for rule in RULES:
        for folder in FOLDERS:
            count, allowed = counts.get(rule, {}).get(folder, 0), budget.get(rule, {}).get(folder, 0)
            if count > allowed:
                lines.append(
                    f"{folder}: {count} offenders of {rule!r}, {allowed} allowed; "
                    f"see them with: python tests/helpers/english.py --list {rule!r} {folder}"
                )
            elif count < allowed:
                lines.append(f"{folder}: {count} of {rule!r}, {allowed} in the budget; lower it with --write")
    return lines


def main(arguments: list[str]) -> int:
    """Return 0 if all counts equal the budget, else 1."""
    held = list(found())
    if arguments[:1] == ["--list"]:
        for folder, offence in held:
            if offence.rule == arguments[1] and folder in (arguments[2:] or FOLDERS):
                print(f"{offence.path}:{offence.line}: {offence.sentence}")
        return 0
    tally = Counter((offence.rule, folder) for folder, offence in held)
    counts = {rule: {f: tally[rule, f] for f in FOLDERS if tally[rule, f]} for rule in RULES}
    budget = json.loads(BUDGET.read_text()) if BUDGET.exists() else counts
    lines = broken(counts, budget)
    if arguments == ["--write"] and not any("allowed" in line for line in lines):
        BUDGET.write_text(json.dumps(counts, indent=1) + "\n")
        return 0
    print("\n".join(lines) or f"plain English: {sum(tally.values())} offenders are left, as the budget allows")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
