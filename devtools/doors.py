"""Trials of what stands between clients and a server that crashes, or beside it."""

import contextlib
import json
import shutil
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.server import DATABASE, PORT, Server
from common import postgres
from common.base import DevError, own
from common.postgres import ServerError

from . import build, rules
from .trial import SCHEMA, SETTINGS, Door, numbers, until_none


class PgBouncer(Door):
    """Clients in transaction pooling, whose pooler outlives the server."""

    tool = "pgBouncer"
    done = "all clients through one pgBouncer with `pool_mode = transaction`, which goes on"
    caveat = "none seen"
    packages = ("pgbouncer",)
    PROGRAM = "/usr/sbin/pgbouncer"

    def version(self) -> str:
        return self.version_of(self.PROGRAM)

    def prepare(self) -> None:
        home = self.home("pgbouncer")
        self.write_config(home / "ini", {
            "databases": {"*": f"host={self.sign(self.server)} port={PORT}"
                               f" user={postgres.SUPERUSER}"},
            "pgbouncer": {"unix_socket_dir": home, "listen_port": PORT, "listen_addr": "",
                          "auth_type": "any", "pool_mode": "transaction", "server_login_retry": 1,
                          "logfile": home / "log"}})
        self.spawn(self.PROGRAM, "--quiet", home / "ini")
        self.door = Server(self.paths, self.bindir, self.server.data)
        self.door.sockets = home
        self._wait()

    def crash(self) -> None:
        super().crash()
        self._wait()

    def _wait(self):
        """Wait until pgBouncer lets clients in, which it tries once a second."""
        until_none(self.door.refusal, "pgBouncer does not let clients in")


class Prometheus(Door):
    """What watches a server, and asks it all the time."""

    tool = "Prometheus with postgres_exporter"
    done = ("queries, rules and dashboard of `packaging/monitoring`, the server scraped each second; "
            "at the end each expression of the dashboard has values, no rule an error")
    caveat = "none seen; Grafana itself was not tried, as Debian has no package of it"

    def version(self) -> str:
        return ", ".join(map(self.version_of, self.watchers))

    def prepare(self) -> None:
        self.watchers = [rules.unpacked(self.paths, name, name)
                         for name in ("prometheus", "prometheus-postgres-exporter")]
        self.server.sql("CREATE EXTENSION pg_doublewrite_stats")
        host = self.sign(self.server)
        home = self.home("prometheus")
        for name in (rules.RULES, rules.QUERIES):
            own(shutil.copy(self.paths.repo / rules.PLACE / name, home))
        self.address, exported = (f"127.0.0.1:{port}" for port in _free_ports(2))
        (home / "prometheus.yaml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules.RULES],
            "scrape_configs": [{"job_name": "postgres",
                                "static_configs": [{"targets": [exported]}]}]}))
        prometheus, exporter = self.watchers
        self._watch(exporter, f"--web.listen-address={exported}", "--disable-default-metrics",
                    "--disable-settings-metrics", "--extend.query-path", home / rules.QUERIES,
                    DATA_SOURCE_NAME=f"host={host} port={PORT} dbname={DATABASE}"
                                     f" user={postgres.SUPERUSER} sslmode=disable")
        self._watch(prometheus, f"--config.file={home / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={home / 'data'}", f"--web.listen-address={self.address}")

    def _watch(self, program, *arguments, **environment):
        with open(self.place / f"{Path(program).name}.log", "w") as log:
            self.spawn(program, *arguments, log=log, **environment)

    def judge(self) -> None:
        with self.load():
            self.work()
            self._await_values()
        bad = [rule["name"] for group in self._ask("rules")["groups"] for rule in group["rules"]
               if rule["health"] != "ok"]
        if bad:
            raise DevError(f"Prometheus cannot evaluate {', '.join(bad)}")
        super().judge()

    def _await_values(self):
        """Wait until each expression of the dashboard has values."""
        dashboard = json.loads(
            (self.paths.repo / rules.PLACE / rules.DASHBOARD).read_text())
        wanted = {target["expr"].replace("$instance", ".*").replace("$__rate_interval", "10s")
                  for panel in dashboard["panels"] for target in panel.get("targets", ())}
        until_none(lambda: [one for one in wanted if not self._ask("query", query=one)["result"]],
                   "without a value", 60)

    def _ask(self, what, **arguments):
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]


def _free_ports(number):
    """Return ports of this machine that are free."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class Shards(Door):
    """Three servers, partitions on each; one of those with data crashes."""

    tool = "postgres_fdw, partitions across three servers"
    done = ("hash partitions on all three, tables of pgbench on one, all clients through another; "
            "the one with pgbench's tables killed and torn")
    caveat = ("transactions that write on several servers are not atomic in `postgres_fdw`, as in "
              "stock; each here writes on one")

    TABLE = "TABLE ledger{} (id bigint, note text)"

    def prepare(self) -> None:
        self.door, second = (self.cluster(name) for name in ("coordinator", "second"))
        for server in (self.door, second):
            server.create()
            server.configure(SETTINGS)
            server.start()
            server.sql(f"CREATE DATABASE {DATABASE}", database="postgres")
            server.sql("CREATE EXTENSION amcheck")
        self.server.sql(f"DROP TABLE ledger; CREATE {self.TABLE.format(1)};"
                        "CREATE INDEX ON ledger1 (id); CREATE INDEX ON ledger1 (md5(note))")
        second.sql(f"CREATE {self.TABLE.format(2)}; CREATE INDEX ON ledger2 (id)")
        self.door.sql("""
CREATE EXTENSION postgres_fdw;
CREATE SEQUENCE ids;
CREATE TABLE ledger (id bigint DEFAULT nextval('ids'), note text) PARTITION BY HASH (id);
CREATE TABLE ledger0 PARTITION OF ledger FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE INDEX ON ledger0 (id);""")
        for number, server in enumerate((self.server, second), 1):
            self.door.sql(f"""
CREATE SERVER shard{number} FOREIGN DATA WRAPPER postgres_fdw
	OPTIONS (host '{self.sign(server, f"server{number}")}', port '{PORT}', dbname '{DATABASE}');
CREATE USER MAPPING FOR PUBLIC SERVER shard{number} OPTIONS (user '{postgres.SUPERUSER}');
CREATE FOREIGN TABLE ledger{number} PARTITION OF ledger
	FOR VALUES WITH (MODULUS 3, REMAINDER {number}) SERVER shard{number};""")
        self.door.sql("IMPORT FOREIGN SCHEMA public EXCEPT (ledger1)"
                      " FROM SERVER shard1 INTO public")

    def judge(self) -> None:
        self.count(self.door, self.acknowledged)
        for server in self.servers:
            self.examine(server)
        for server in self.servers:
            server.stop()
            self.examine_files(server)


class Logical(Door):
    """Logical replication to and from a stock server."""

    tool = "logical replication, to and from stock"
    done = ("clients on both servers, each a subscriber of the other; this build's killed and "
            "torn under load")
    caveat = "none seen"
    kinds = ("test", "stock")

    BACK = "INSERT INTO back (note) SELECT repeat(md5(random()::text), 90) RETURNING id"
    BACK_TABLE = "CREATE TABLE back (id bigserial PRIMARY KEY, note text)"
    PUBLISHED = ("ledger", "pgbench_accounts", "pgbench_branches", "pgbench_history",
                 "pgbench_tellers")

    def version(self) -> str:
        return self.stock.sql("SHOW server_version").split()[0]

    def prepare(self) -> None:
        self.stock = self.cluster("stock", build.bindir(self.paths, "stock"))
        self.stock.create()
        self.stock.configure({"wal_level": "logical", "fsync": "off"})
        self.stock.start()
        self.heard_back: set[int] = set()
        self.server.stop()
        self.server.configure({"wal_level": "logical"})
        self.server.start()
        self.stock.sql(f"CREATE DATABASE {DATABASE}", database="postgres")
        self.stock.call("pgbench", "--initialize", "--init-steps=dtp", "--quiet",
                        env=self.stock.environment(), capture=True)
        self.stock.sql(f"{SCHEMA}; {self.BACK_TABLE}; CREATE PUBLICATION back FOR TABLE back")
        self.server.sql(f"{self.BACK_TABLE};"
                        f" CREATE PUBLICATION there FOR TABLE {', '.join(self.PUBLISHED)}")
        self._subscribe(self.stock, self.server, "there")
        self._subscribe(self.server, self.stock, "back")

    def _subscribe(self, subscriber, publisher, name):
        """Subscribe, and wait until all tables are copied: then whole transactions come."""
        subscriber.sql(f"CREATE SUBSCRIPTION {name} CONNECTION 'host={self.sign(publisher, name)}"
                       f" port={PORT} dbname={DATABASE} user={postgres.SUPERUSER}'"
                       f" PUBLICATION {name}")
        until_none(lambda: int(subscriber.sql("SELECT count(*) FROM pg_subscription_rel"
                                              " WHERE srsubstate <> 'r'")),
                   "tables that are not copied yet")

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        heard = self.place / f"heard-back-{time.monotonic_ns()}"
        with super().load(), self.stock.following(self.BACK, heard, 0.02):
            try:
                yield
            finally:
                self.heard_back.update(numbers(heard.read_text()))

    def judge(self) -> None:
        self._await_rows(self.stock, "ledger", self.acknowledged)
        self._await_rows(self.server, "back", self.heard_back)
        if self.stock.sql(postgres.BALANCES) != "t":
            raise ServerError("the tables of pgbench do not agree on the subscriber")
        super().judge()

    @staticmethod
    def _await_rows(subscriber, table, expected):
        """Wait until a subscriber has all rows."""
        if not expected:
            raise DevError(f"nothing was written to {table}")
        until_none(lambda: len(expected - numbers(f"{subscriber.sql(f'SELECT id FROM {table}')}\n")),
                   f"of {len(expected)} rows of {table} have not arrived")
