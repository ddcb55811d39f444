"""The tables, as they are read."""

import dataclasses

from shoal_lab.bench.report import case_text, number, sweep_text, times
from shoal_lab.bench.results import Row
from tests.bench.found import case, sweep


def test_a_table_fits_into_80_columns_and_has_all_values():
    long = Row(
        "a rival with a very long name indeed", "limit", (123456.0, 99999.0), "x" * 30 + " " + "y" * 60
    )
    peer = Row("another one that is called something long", "peer", (3.0, 4.0))
    text = case_text(
        case(rows=(*case().rows, long, peer), rounds_repeated=3, rounds_disturbed=2, lost_cores=0.71)
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "native: Toys, num_envs=8" in text
    assert "Shoal: num_threads=1" in text and "each: 3 bursts" in text
    assert "others used 0.71 cores; disturbed rounds repeated: 3, kept: 2; trust ratios" in text.replace(
        "\n      ", " "
    )


def test_a_quiet_run_does_not_mention_others():
    assert "others" not in case_text(case())


def test_rows_are_sorted_by_what_is_better():
    def names(found):
        return [line.split("  ")[1] for line in case_text(found).splitlines()[3:7]]

    assert names(case())[0].startswith("a plain loop (limit)")
    assert names(case(more_is_better=False))[0].startswith("Peer & <sons>")


def test_parameters_are_printed_once():
    said = set()
    assert "Shoal: num_threads=1" in case_text(case(), said)
    again = case_text(dataclasses.replace(case(), title="Other toys"), said)
    assert "num_threads=1" not in again and "Other toys" in again


def test_numbers_are_formatted_in_a_few_characters():
    assert [number(x) for x in (0.0214, 3.514, 99.97, 999.4, 999.7, 15_400, 291e6, 2.5e9)] == [
        "0.0214", "3.51", "100", "999", "1k", "15.4k", "291M", "2.5G",
    ]  # fmt: skip
    assert [times(x) for x in (None, 0.856, 12.34, 815.2, 17094)] == [
        "-",
        "0.86x",
        "12.3x",
        "815x",
        "17,094x",
    ]


def test_a_sweep_has_columns_and_conclusions():
    lines = sweep_text(sweep()).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split() == ["16", "150", "210"] for line in lines)
    assert lines[-1] == "  -> Saturated from 16 on."
