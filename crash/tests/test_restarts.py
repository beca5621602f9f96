"""Tests of what `./dev restarts` does when its server does not come back."""

import unittest
from unittest import mock

try:
    import psycopg2

    from pgcut import restarts
except ImportError:
    psycopg2 = None


@unittest.skipIf(psycopg2 is None, "python3-psycopg2 is not installed")
class CheckedTest(unittest.TestCase):

    def server(self):
        server = mock.Mock()
        server.query.side_effect = psycopg2.OperationalError("it is gone")
        server.failure = lambda what: restarts.postgres.ServerError(what)
        return server

    def test_server_that_does_not_come_back(self):
        with mock.patch.object(restarts, "wait_until_open", return_value=False), \
                self.assertRaisesRegex(restarts.postgres.ServerError, "did not come back"):
            restarts.checked(self.server(), "SELECT 1")

    def test_crash_does_not_count(self):
        server = self.server()
        server.query.side_effect = [psycopg2.OperationalError("it is gone"), True]
        with mock.patch.object(restarts, "wait_until_open", return_value=True):
            self.assertIs(restarts.checked(server, "SELECT 1"), True)

    def test_statements_have_a_limit(self):
        server = restarts.Server("", "", None, {})
        with mock.patch.object(restarts.postgres, "connect") as connect:
            server.connect()
        self.assertIn("statement_timeout", connect.call_args.kwargs["options"])


if __name__ == "__main__":
    unittest.main()
