"""Kinds of load: tables, indexes, databases and tablespaces come and go, and so do their files."""

from typing import Any

import psycopg2

from .client import Client
from .table import DERIVED, METHODS, Table


class Copy(Client):
    """COPY into an old table, and into one of the same transaction."""

    kind = "copy"
    tables = (Table("old", limit=500),)
    files = True

    def step(self) -> None:
        """Load one or the other."""
        rng = self.rng
        with self.transaction() as cursor:
            if rng.random() < 0.6:
                old = self.table("old")
                if len(old.rows) > old.limit:
                    old.delete(cursor, rng, 400)
                old.load(cursor, rng, rng.randint(1, 300))
            elif self.table("new") is None:
                new = Table(self.prefix + "new")
                new.create(cursor)
                self.model[new.name] = new
                new.load(cursor, rng, rng.randint(1, 1000))
            else:
                self.remove(cursor, self.table("new"))


class Index(Client):
    """Indexes of every access method come and go while rows change."""

    kind = "index"
    tables = (Table("t", size=250, limit=400, derived=tuple(DERIVED)),)
    files = True

    def step(self) -> None:
        """Change rows; create, drop or rebuild an index."""
        rng = self.rng
        table = self.table("t")
        with self.transaction() as cursor:
            table.churn(cursor, rng)
            method = rng.choice(sorted(METHODS))
            if table.index_name(method) not in table.indexes:
                table.create_index(cursor, method)
            elif rng.random() < 0.5:
                cursor.execute(f"REINDEX INDEX load.{table.index_name(method)}")
            else:
                table.drop_index(cursor, method)


class Vacuum(Client):
    """VACUUM, FREEZE and FULL of its own tables and of the shared ones."""

    kind = "vacuum"
    tables = (Table("a", size=300), Table("b", size=300, methods=("btree",)))
    files = True

    def step(self) -> None:
        """Make dead rows, then clean up."""
        rng = self.rng
        table = self.any_table()
        with self.transaction() as cursor:
            table.churn(cursor, rng, rng.randint(20, 100))
        how = rng.choice(("", "", "(FREEZE)", "(FREEZE)", "(FULL)", "(FULL, FREEZE)"))
        name = rng.choice((table.name, table.name, table.name, "load.accounts",
                           "load.history", "oracle.journal", "pg_class", "pg_attribute"))
        if name.startswith("pg_") and "FULL" in how:
            name = table.name       # would deadlock with the other clients' DDL
        self.command(f"VACUUM {how} {name}")


class Truncate(Client):
    """TRUNCATE alone, with a load in the same transaction, and undone."""

    kind = "truncate"
    tables = (Table("t", methods=("btree",)),)
    files = True
    aborts = 0.3

    def step(self) -> None:
        """Truncate or fill."""
        rng = self.rng
        table = self.table("t")
        with self.transaction() as cursor:
            if rng.random() < 0.5:
                table.churn(cursor, rng)
            if rng.random() < 0.7:
                table.truncate(cursor)
            for _ in range(rng.randint(0, 2)):
                rng.choice((table.load, table.insert))(cursor, rng, rng.randint(1, 200))


class Refill(Client):
    """Tables that live for some checkpoints, and then go or hold less.

    Changes of their pages lie before and after a checkpoint begins, and are
    never written if the table goes in time.  A second TRUNCATE in a transaction
    cuts the same file, and what is then not filled again must stay empty.
    """

    kind = "refill"
    tables = tuple(Table(f"t{number}", size=120) for number in range(4))
    files = True
    aborts = 0.15

    def step(self) -> None:
        """Change some rows; at times begin anew; at times fill, cut and fill with less."""
        rng = self.rng
        table = self.table(f"t{rng.randrange(4)}")
        with self.transaction() as cursor:
            what = rng.random()
            if what < 0.85:
                table.churn(cursor, rng)
                return
            table.truncate(cursor)
            if what < 0.93:
                table.load(cursor, rng, rng.randint(1, 120))
                return
            table.load(cursor, rng, rng.randint(800, 1600))
            table.truncate(cursor)
            table.load(cursor, rng, rng.randint(1, 100))


class Recreate(Client):
    """DROP, and CREATE under the same name."""

    kind = "recreate"
    tables = (Table("t", methods=("hash",)),)
    files = True
    aborts = 0.2

    def step(self) -> None:
        """Drop, create, or both."""
        rng = self.rng
        with self.transaction() as cursor:
            table = self.table("t")
            if table is not None:
                self.remove(cursor, table)
            if table is None or rng.random() < 0.6:
                new = self.shape("t")
                new.name = self.prefix + "t"
                new.size = rng.randint(0, 300)
                self.add(cursor, new)

    def shape(self, short: str) -> Table:
        """Return the table with a random index."""
        return Table(short, methods=(self.rng.choice(sorted(METHODS)),))


class Unlogged(Client):
    """Unlogged tables become logged, and back."""

    kind = "unlogged"
    tables = (Table("u", methods=("btree",), unlogged=True), Table("p", methods=("gist",)))
    files = True

    def step(self) -> None:
        """Change rows, or the persistence."""
        table = self.any_table()
        with self.transaction() as cursor:
            table.churn(cursor, self.rng, self.rng.randint(1, 40))
            if self.rng.random() < 0.4:
                table.unlogged = not table.unlogged
                cursor.execute(f"ALTER TABLE {table.name}"
                               f" SET {'UNLOGGED' if table.unlogged else 'LOGGED'}")


class Database(Client):
    """CREATE DATABASE by either strategy, its move to another tablespace, and DROP DATABASE."""

    kind = "database"
    files = True
    pause = 1.0

    database = None     # name of the one that exists

    def connect(self) -> Any:
        """Take over what an earlier run has left."""
        known = super().connect()
        for (name,) in self.query("SELECT datname FROM pg_database WHERE datname"
                                  f" LIKE 'load_{self.kind}_%'"):
            self.database = name
        return known

    def step(self) -> None:
        """Create one, use it or not; move it or drop it the next time."""
        rng = self.rng
        if self.database is None:
            with self.transaction(deliberate=False):    # gives each database its own name
                pass
            name = f"load_{self.kind}_{self.n}"
            strategy = rng.choice(("WAL_LOG", "FILE_COPY"))
            if self.effect(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY {strategy}",
                           "database", name, True, strategy=strategy):
                self.database = name
                if rng.random() < 0.4:
                    self.use(name)
            elif self.query(f"SELECT FROM pg_database WHERE datname = '{name}'"):
                self.database = name
        else:
            name = self.database
            paths = [path for (path,) in self.query(
                f"SELECT oracle.directory(oid) FROM pg_database WHERE datname = '{name}'")]
            if rng.random() < 0.5:
                place = rng.choice(self.places())
                self.command(f"ALTER DATABASE {name} SET TABLESPACE {place}", paths=paths)
            elif self.effect(f"DROP DATABASE {name} WITH (FORCE)", "database", name, False, paths):
                self.database = None

    def use(self, name: str) -> None:
        """Write into the database; its contents are not verified from then on."""
        self.record("touch", name=name)
        begun = self.begin()
        try:
            connection = self.run.connect(name)
            try:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute("CREATE TABLE t AS"
                                   " SELECT g AS id, repeat('x', 200) AS filler"
                                   " FROM generate_series(1, 500) g")
            finally:
                connection.close()
        except psycopg2.Error as error:
            self.failed(error, begun=begun)
            return
        self.end(begun)


class Tablespace(Client):
    """Tables and indexes move between tablespaces; tablespaces come and go."""

    kind = "tablespace"
    tables = (Table("t", size=200, methods=("btree",)),)
    files = True

    own = None      # name of the tablespace that it made itself

    def connect(self) -> Any:
        """Take over what an earlier run has left."""
        known = super().connect()
        for (name,) in self.query("SELECT spcname FROM pg_tablespace WHERE spcname"
                                  " LIKE 'load_brief_%'"):
            self.own = name
        return known

    def step(self) -> None:
        """Change rows, then move something, or make and drop a tablespace."""
        rng = self.rng
        table = self.table("t")
        places = self.places()
        with self.transaction() as cursor:
            table.churn(cursor, rng, rng.randint(1, 50))
            cursor.execute(f"ALTER TABLE {table.name} SET TABLESPACE {rng.choice(places)}")
            if rng.random() < 0.5:
                cursor.execute(f"ALTER INDEX load.{table.index_name('btree')}"
                               f" SET TABLESPACE {rng.choice(places)}")
        if rng.random() < 0.15:
            self.come_and_go()

    def come_and_go(self) -> None:
        """Create an in-place tablespace, or drop it."""
        if self.own is None:
            name = f"load_brief_{self.n}_{self.rng.randrange(1000)}"
            if (self.command("SET allow_in_place_tablespaces = on", files=False)
                    and self.effect(f"CREATE TABLESPACE {name} LOCATION ''",
                                    "tablespace", name, True)):
                self.own = name
        elif self.effect(f"DROP TABLESPACE {self.own}", "tablespace", self.own, False):
            self.own = None
