from bench import importing
from pipeline.formats.pab import read_pab


def test_the_made_folder_is_one_in_the_released_layout_and_the_same_every_time(tmp_path):
    for name in ("one", "two"):
        importing.make_folder(tmp_path / name, 10, 3, rows_per_folder=6)
    found = read_pab(tmp_path / "one", "train")
    assert (len(found.rows), found.left_out) == (10, 0)
    assert all(row.hard is not None and row.hard.id != row.id for row in found.rows)
    assert len(read_pab(tmp_path / "one", "test").rows) == 3
    files = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "one", tmp_path / "two")
    ]
    assert files[0] == files[1]


def test_an_import_is_timed_in_a_process_of_its_own_with_its_peak_memory(tmp_path, capsys):
    assert importing.main(["--rows", "4", "--work", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "4"]
    assert all(50 < float(line.split()[-2].replace(",", "")) < 2000 for line in lines[1:])
    assert list(tmp_path.iterdir()) == []
