# SPDX-License-Identifier: Apache-2.0
"""The progress output of long commands, on a terminal and elsewhere."""

import io
import sys

from edgernn.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return sys.stderr


def test_elsewhere_there_are_lines_now_and_then(capsys):
    progress = Progress(every=1000)
    progress.begin("task", 3, line="task: 3 parts")
    progress.note("a \x1b[2Jnote")
    progress.update(1, "one", loss=0.5)
    assert not progress.is_due()
    progress.update(3, "three")
    progress.close()
    assert capsys.readouterr().err.splitlines() == ["task: 3 parts", "a ?[2Jnote", "three"]
    progress = Progress(every=0)
    progress.begin("task", None)
    progress.update(1, "one")
    progress.update(2)
    assert capsys.readouterr().err.splitlines() == ["one"]


def test_a_terminal_has_a_bar_with_the_newest_figures(monkeypatch):
    screen = terminal(monkeypatch)
    progress = Progress()
    progress.begin("task", 3, 1, line="no line")
    progress.update(2, "no line", loss=0.51234, skip="1.0 %")
    progress.update(3, loss=0.25)
    progress.note("[a note]")
    progress.close()
    text = screen.getvalue()
    assert "task" in text
    assert "3/3" in text
    assert "loss 0.25  skip 1.0 %" in text
    assert "[a note]" in text
    assert "no line" not in text


def test_a_process_without_standard_error_shows_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    progress = Progress(every=0)
    progress.begin("task", 2, line="task: 2 parts")
    progress.update(2, "two", loss=0.5)
    progress.close()
    assert capsys.readouterr().out == ""


def test_bytes_have_their_own_columns(monkeypatch):
    screen = terminal(monkeypatch)
    progress = Progress()
    progress.begin("file.bin", 2_000_000, in_bytes=True)
    progress.update(2_000_000)
    progress.close()
    assert "2.0/2.0 MB" in screen.getvalue()


def test_without_rich_a_terminal_has_lines(monkeypatch):
    screen = terminal(monkeypatch)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    progress = Progress()
    progress.begin("task", 1, line="begun")
    progress.update(1, "done")
    assert screen.getvalue() == "begun\ndone\n"


def test_time_left_follows_the_pace(monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = Progress()
    progress.begin("task", 10, 4)
    now = 108.0
    progress.update(6)
    assert progress.seconds_left == 16.0
