"""One Parquet file for each table of a results file. Needs pyarrow."""
import json
import os

import pyarrow
import pyarrow.parquet

TABLES = "run", "evaluation", "push", "step", "pass", "event", "checkpoint", "run_staleness", "run_worker_time"
TYPES = {"INTEGER": pyarrow.int64(), "REAL": pyarrow.float64(), "TEXT": pyarrow.string()}
ROWS = 100_000  # of one row group


def _restore_nan(columns, rows):
    """SQLite stores NaN as NULL and names the column in not_a_number."""
    at = columns.index("not_a_number") if "not_a_number" in columns else None
    for row in rows:
        row = list(row)
        for name in (row[at] or "").split(",") if at is not None else ():
            if name in columns:
                row[columns.index(name)] = float("nan")
        yield row


def _write_table(source, name, path):
    described = source.rows("SELECT name, type FROM pragma_table_info(:name)", name=name)
    columns = [column["name"] for column in described]
    schema = pyarrow.schema([(column["name"], TYPES[column["type"]]) for column in described])
    key = "id" if name == "run" else "run_id"
    rows = source.connection.execute(f"SELECT * FROM {name} WHERE :ids IS NULL OR {key} IN (SELECT value FROM json_each(:ids))"
                                     f" ORDER BY {key}", {"ids": None if source.ids is None else json.dumps(source.ids)})
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as file:
        while batch := rows.fetchmany(ROWS):
            values = zip(*_restore_nan(columns, batch))
            file.write_table(pyarrow.table([pyarrow.array(each, field.type) for each, field in zip(values, schema)], schema=schema))


class Target:
    def __init__(self, source, path):
        self.source = source
        self.path = path

    def write(self, runs):
        """Writes PATH/TABLE.parquet for every table of gradlag; a file appears when it is complete."""
        os.makedirs(self.path, exist_ok=True)
        for name in TABLES:
            self._write_table(name)

    def _write_table(self, name):
        part = os.path.join(self.path, f".{name}.part")
        try:
            _write_table(self.source, name, part)
            os.replace(part, os.path.join(self.path, f"{name}.parquet"))
        finally:
            if os.path.exists(part):
                os.remove(part)

    def close(self):
        pass
