"""The lint of sentences: each rule finds a planted offender and passes a plain sentence; the budget only falls."""

import json
from collections import Counter

import pytest

from english import BUDGET, RULES, Offence, broken, main, markdown_texts, offences, python_texts

PLANTED = {
    "so many": "A core sends so many tiles.",
    "tells": "The kernel tells its neighbour.",
    "nobody": "Memory that nobody wrote is NaN.",
    "behind": "The copies come behind the last round.",
    "of whom": "Give the tile of whom the core picks.",
    "those of": "The sums are those of the rows.",
    "knows": "The plan knows its buffers.",
    "on the way": "Partial sums change on the way.",
    "what": "The core adds what lies there.",
    "long sentence": "A round " + "sends one tile " * 9 + "away.",
}


def budget():
    return {rule: Counter(counts) for rule, counts in json.loads(BUDGET.read_text()).items()}


def rules_of(source, texts=python_texts):
    return [offence.rule for offence in offences("file", texts(source))]


@pytest.mark.parametrize(("rule", "sentence"), PLANTED.items(), ids=PLANTED)
def test_each_rule_finds_its_offender_in_code_and_in_prose(rule, sentence):
    name = sentence.lower().rstrip(".").replace(" ", "_")
    for source in (
        f'"""Module.\n\n{sentence}\n"""',
        f"x = 1  # {sentence}",
        f'print("{sentence}")',
        f"def test_{name}(): 0",
    ):
        assert rules_of(source) == [rule], source
    assert rules_of(f"# Title\n\n- {sentence}\n\n| a | {sentence} |\n", markdown_texts) == [rule, rule]


def test_every_rule_of_words_has_an_offender_here():
    assert {*PLANTED, "docstring without a verb"} == {*RULES}


def test_a_docstring_of_a_function_begins_with_a_verb_and_that_of_a_property_need_not():
    assert rules_of('def f():\n    """The sum."""') == ["docstring without a verb"]
    assert rules_of('def f():\n    """Return the sum."""') == []
    assert rules_of('@property\ndef f(self):\n    """The sum."""') == []


def test_comments_beside_code_stand_alone():
    beside = "".join(f"x = {number}  # one two three four five six seven eight nine\n" for number in range(3))
    assert rules_of(beside) == []
    assert rules_of(beside.replace("x = 0  ", "").replace("x = 1  ", "").replace("x = 2  ", "")) == ["long sentence"]


def test_code_names_and_questions_are_no_offenders():
    assert rules_of("```\nso many\n```\n\nThe flag `tells` is set. What bounds it?", markdown_texts) == []
    assert rules_of('mode = "behind"  # noqa: E501') == []


def test_cells_of_a_table_in_a_string_are_sentences():
    cell = "ten words of a cell that is not a sentence"
    assert rules_of(f'page = """\n| a | {cell} | {cell} |\n| b | {cell} | {cell} |\n"""') == []


def test_a_count_over_its_budget_names_the_command_and_one_below_asks_to_lower_it():
    counts = {"tells": {"docs": 2, "tests": 1}}
    assert broken(counts, counts) == []
    assert (
        "python tests/helpers/english.py --list 'tells' docs" in broken(counts, {"tells": {"docs": 1, "tests": 1}})[0]
    )
    assert "lower it with --write" in broken(counts, {"tells": {"docs": 3, "tests": 1}})[0]


def test_counts_within_the_budget_pass_and_others_fail(monkeypatch, capsys):
    allowed = [(folder, Offence(rule, "", 0, "")) for rule, counts in budget().items() for folder in counts.elements()]
    monkeypatch.setattr("english.found", lambda: allowed)
    assert main([]) == 0
    monkeypatch.setattr("english.found", lambda: [*allowed, ("docs", Offence("tells", "docs/a.md", 7, "It tells."))])
    assert main([]) == 1
    assert "docs: " in capsys.readouterr().out


def test_offenders_are_listed_with_their_place(monkeypatch, capsys):
    monkeypatch.setattr("english.found", lambda: [("docs", Offence("tells", "docs/a.md", 7, "It tells."))])
    main(["--list", "tells", "docs"])
    assert capsys.readouterr().out == "docs/a.md:7: It tells.\n"
