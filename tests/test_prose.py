# SPDX-License-Identifier: Apache-2.0
"""Docstrings and comments begin with a subject or a verb, and names say what a value is.

`python -m tests.test_prose edgernn/cli runtime` prints the findings in these folders or files.
"""

import ast
import io
import re
import sys
import tokenize

import pytest

from tests.source_tree import ROOT

ROOMS = ("edgernn", "export", "runtime", "training", "docs")
NATIVE = {".cc", ".cu", ".h"}
# these names say how a value came to be
NAMES = {"made", "given", "found", "own"}
FIRST_WORDS = re.compile(r"(of|what|as|so many|there|neither)(?![\w=-])", re.IGNORECASE)
# literals are matched first, so that a comment's marks inside them do not count
NATIVE_TOKENS = re.compile(
    r'R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'"
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)",
    re.DOTALL,
)


def opening(text):
    """The bare first word of a docstring or comment, or None."""
    match = FIRST_WORDS.match(text.lstrip("#/*!< \t\n"))
    return None if match is None else match[1]


def first_lines(source, comments):
    """The comments (line, column, text) but for those that continue a comment of the line before."""
    columns, lines = {line: column for line, column, _ in comments}, source.split("\n")
    return [
        (line, text)
        for line, column, text in comments
        if columns.get(line - 1) != column or lines[line - 1][:column].strip()
    ]


def python_texts(source, tree):
    """The docstrings and comments of a Python file: (line, text)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    yield from first_lines(source, [(*token.start, token.string) for token in tokens if token.type == tokenize.COMMENT])


def assigned(tree):
    """The variables, parameters and attributes that a Python file assigns: (line, name)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def native_texts(source):
    """The comments of a C, C++ or CUDA file: (line, text)."""
    comments = []
    for match in NATIVE_TOKENS.finditer(source):
        if match["comment"]:
            begin = match.start()
            line, column = source.count("\n", 0, begin) + 1, begin - source.rfind("\n", 0, begin) - 1
            comments.append((line, column, match["comment"]))
    return first_lines(source, comments)


def findings(source, suffix=".py"):
    """The findings in a source text: (line, message), by line."""
    lines = []
    if suffix in NATIVE:
        texts = native_texts(source)
    else:
        tree = ast.parse(source)
        texts = python_texts(source, tree)
        lines = [(line, f"the name {name!r}") for line, name in assigned(tree) if name.strip("_") in NAMES]
    lines += [(line, f"a text that begins with {word!r}") for line, text in texts if (word := opening(text))]
    return sorted(lines)


def findings_in(path):
    """The findings in a folder or file of the tree, one line each."""
    paths = [path] if path.is_file() else sorted(path.rglob("*"))
    return [
        f"{file.relative_to(ROOT)}:{line}: {message}"
        for file in paths
        if file.suffix == ".py" or (file.suffix in NATIVE and ROOT / "runtime" / "csrc" in file.parents)
        for line, message in findings(file.read_text("utf-8"), file.suffix)
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_texts_and_names_say_what_things_are(room):
    lines = findings_in(ROOT / room)
    assert not lines, "\n".join(["", *lines])


@pytest.mark.parametrize("word", ["of", "What", "AS", "so many", "There", "neither"])
def test_a_bare_first_word_is_a_finding(word):
    message = f"a text that begins with {word!r}"
    for source in (f'"""{word} it is."""', f"x = 1  # {word} it is", f"# {word} it is"):
        assert findings(source) == [(1, message)]
    for source in (f"int x;  // {word} it is", f"/* {word} it is */", f"/**\n * {word} it is\n */", f"/// {word} it"):
        assert findings(source, ".h") == [(1, message)]
    assert findings(f'class A:\n    """{word} it is."""\n\n    def f(self):\n        """\n        {word} it."""') == [
        (2, message),
        (5, message),
    ]


@pytest.mark.parametrize("text", ["off", "asynchronous", "as-is", "thereby", "so much", "The sum of it", "of=3"])
def test_other_first_words_are_no_findings(text):
    assert findings(f'"""{text}."""\n# {text}') == []
    assert findings(f"// {text}", ".cc") == []


def test_further_lines_of_a_comment_are_no_findings():
    assert findings("# the sum\n# of both\n\n# of it") == [(4, "a text that begins with 'of'")]
    assert findings("int x;  // the sum\n        // of both\nint y;  // of it", ".cc") == [
        (3, "a text that begins with 'of'")
    ]
    assert findings('"""The sum\nof both."""') == []


def test_literals_hold_no_comments():
    assert findings("x = '# of it'") == []
    for source in ('f("// of it");', 'f(\'"\'); g("// of it");', 'f(R"(\n// of it)");', "n = 1'000; f('\\'');"):
        assert findings(source, ".cc") == []
    assert findings('f("//");  // of it', ".cc") == [(1, "a text that begins with 'of'")]


@pytest.mark.parametrize(
    "source",
    [
        "given = 1",
        "given: int = 1",
        "for given in x: ...",
        "a, (b, *given) = x",
        "x._given = 1",
        "def f(given): ...",
        "def f(*, given=1): ...",
        "lambda given: 1",
        "with x as given: ...",
        "[given := 1]",
        "try: ...\nexcept E as given: ...",
        "match x:\n    case [1, *given]: ...",
    ],
)
def test_a_name_is_a_finding(source):
    assert [message.replace("_", "") for _, message in findings(source)] == ["the name 'given'"]


def test_a_name_that_is_read_is_no_finding():
    assert findings("from hypothesis import given\n\n\n@given(x)\ndef f(): found(own=1)") == []


if __name__ == "__main__":
    lines = [line for word in sys.argv[1:] or ROOMS for line in findings_in((ROOT / word).resolve())]
    print("\n".join(lines))
    sys.exit(bool(lines))
