"""Appending: flushed per line, safe with several writers, honest about disks that fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilegrad._base.errors import TuningError
from tilegrad.tuning_logs import Appender, Records, parse, read, write

GOLDEN = Path(__file__).with_name("golden_v1.jsonl")
LINE = parse(GOLDEN.read_text().splitlines()[0])
ROOT = Path(__file__).parents[2]


def test_append_is_visible_to_another_process_at_once(tmp_path):
    log = Appender(tmp_path / "deep" / "log.jsonl")
    log.append(LINE)
    assert subprocess.check_output(["cat", str(log.path)]).decode() == LINE.line() + "\n"
    log.close()
    log.close()


def test_a_torn_last_line_costs_only_itself(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(LINE.line() + "\n" + LINE.line()[:40])
    with Appender(path) as log:
        log.append(LINE)
    contents = read(path)
    assert len(contents.lines) == 2 and contents.skipped == 1


WRITER = """
import sys
from tilegrad.tuning_logs import Appender, parse
line = parse(open(sys.argv[2]).readline())
with Appender(sys.argv[1]) as log:
    for _ in range(300):
        log.append(line)
"""


def test_two_writers_do_not_mix_lines(tmp_path):
    path = tmp_path / "log.jsonl"
    args = [sys.executable, "-c", WRITER, str(path), str(GOLDEN)]
    writers = [subprocess.Popen(args, cwd=ROOT) for _ in range(2)]
    assert [w.wait(60) for w in writers] == [0, 0]
    contents = read(path)
    assert len(contents.lines) == 600 and contents.skipped == 0


def test_a_full_disk_is_a_typed_error_and_keeps_earlier_lines(tmp_path):
    path = tmp_path / "log.jsonl"
    script = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    script += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({2 * len(LINE.line()) + 50}, resource.RLIM_INFINITY))\n" + WRITER
    run = subprocess.run([sys.executable, "-c", script, str(path), str(GOLDEN)], cwd=ROOT, capture_output=True, text=True)
    assert "TuningError" in run.stderr and "Earlier trials are kept" in run.stderr
    assert len(read(path).lines) == 2


def test_a_log_that_cannot_be_written_is_refused_at_once(tmp_path):
    with pytest.raises(TuningError, match="expected a file that can be written"):
        Appender(tmp_path)  # a directory
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):  # reading one would never end
        with pytest.raises(TuningError, match="[Nn]o regular file"):
            Appender(path)
        with pytest.raises(TuningError, match="[Nn]o regular file"):
            read(path)


def test_missing_log_says_what_to_do(tmp_path):
    with pytest.raises(TuningError, match="missing.jsonl.*tilegrad tune -o LOG"):
        Records.load([tmp_path / "missing.jsonl"])


def test_write_replaces_in_one_step(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("old\n")
    assert write(path, [LINE, LINE]) == 2
    assert len(read(path).lines) == 2 and list(tmp_path.iterdir()) == [path]
    with pytest.raises(TuningError):
        write(tmp_path / "no" / "log.jsonl", [LINE])
