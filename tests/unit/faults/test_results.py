from __future__ import annotations

from pathlib import Path

from tests.faults.bench import Bench
from tests.faults.lines import Dose, Line, Verdict
from tests.faults.results import Result, Results, digest, table
from tests.faults.run import todo


def runs(bench: Bench, dose: Dose) -> Verdict:
    return Verdict()


def line(name: str, *, short: bool = True) -> Line:
    return Line(name, f"fault {name}", "holds", runs, Dose("all"), Dose("some") if short else None)


def result(name: str, *, tree: str = "now", holds: bool = True) -> Result:
    return Result(name, "short", "some", "1", "abc", tree, "2020-01-01", 2.0, holds, {"lost": 0, "rate": 1.5})


def test_a_cut_run_goes_on(tmp_path: Path) -> None:
    kept, lines = Results(tmp_path), [line("a"), line("b"), line("c")]
    kept.put(result("a"))
    kept.put(result("b", tree="older"))
    assert [found.name for found in todo(lines, kept, "short", "now")] == ["b", "c"]


def test_results_are_kept_and_logged(tmp_path: Path) -> None:
    kept = Results(tmp_path)
    kept.put(result("a"))
    kept.put(result("a", holds=False))
    assert kept.get("a", "short") == result("a", holds=False)
    assert kept.get("a", "long") is None
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2


def test_table(tmp_path: Path) -> None:
    kept = Results(tmp_path)
    kept.put(result("a"))
    kept.put(result("b", holds=False))
    rows = table([line("a"), line("b"), line("c"), line("long", short=False)], kept, "short").splitlines()[2:]
    assert [row.split(" | ")[3] for row in rows] == ["holds", "**does not hold**", "not run"]
    assert "lost 0, rate 1.5; 2 s; seed 1, commit abc" in rows[0]


def test_digest_is_of_the_sources(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams/a.py").write_text("1")
    before = digest(tmp_path)
    (tmp_path / "streams/a.txt").write_text("1")
    assert digest(tmp_path) == before
    (tmp_path / "streams/a.py").write_text("2")
    assert digest(tmp_path) != before
