"""The results table loses nothing, repeats nothing, and lets one writer in."""

import pytest

from sim.table import Table, csv_line, read_rows

COLUMNS = ("id", "value", "note")


def row(i):
    return {"id": f"r{i}", "value": 1 / (3 + i), "note": "a, b" if i == 2 else ""}


def written(path, rows):
    with Table(path, COLUMNS) as table:
        table.append(rows)


def test_floats_read_back_exactly(tmp_path):
    path = tmp_path / "table.csv"
    written(path, [row(0), row(2)])
    assert [float(found["value"]) for found in read_rows(path)] == [1 / 3, 1 / 5]


def test_torn_last_line_is_cut_wherever_it_was_torn(tmp_path):
    path = tmp_path / "table.csv"
    written(path, [row(0), row(2)])
    whole = path.read_bytes()
    line = csv_line(list(row(3).values())).encode()
    for length in range(len(line)):
        path.write_bytes(whole + line[:length])
        with Table(path, COLUMNS) as table:
            assert [found["id"] for found in table.rows] == ["r0", "r2"]
            table.append([row(3)])
        assert path.read_bytes() == whole + line


def test_torn_header_is_written_again(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id,val")
    written(path, [row(0)])
    assert [found["id"] for found in read_rows(path)] == ["r0"]


def test_other_columns_are_refused_and_left_alone(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id,other\nr0,1\nto")
    with pytest.raises(ValueError, match="other columns: note, other, value"):
        Table(path, COLUMNS)
    assert path.read_text() == "id,other\nr0,1\nto"


def test_second_writer_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    with Table(path, COLUMNS), pytest.raises(ValueError, match="another process"):
        Table(path, COLUMNS)
    written(path, [row(0)])


def test_complete_sorts_and_keeps_every_row(tmp_path):
    path = tmp_path / "table.csv"
    with Table(path, COLUMNS) as table:
        table.append([row(3), row(0)])
        table.append([row(2)])
        table.complete(["r0", "r1", "r2", "r3"])
    assert [found["id"] for found in read_rows(path)] == ["r0", "r2", "r3"]
    assert list(tmp_path.glob("*partial*")) == []


def test_line_breaks_are_refused(tmp_path):
    with Table(tmp_path / "table.csv", COLUMNS) as table, pytest.raises(ValueError, match="break"):
        table.append([row(0) | {"note": "a\nb"}])
