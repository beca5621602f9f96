"""Tests of the complaints about rules for Prometheus that cannot work."""

import unittest

from devtools.rules import complaints, of_dashboard

RULES = """
groups:
  - name: some
    rules:
      - alert: Slow
        expr: rate(pg_things_slow[5m]) > 1
        annotations:
          summary: "pg_double_write_view says more"
          runbook: "#a-thing-is-slow"
"""
TESTS = 'ALERTS{alertname="Slow"}'
RUNBOOK = "# Things\n\n### A thing is slow\n"
QUERIES = "pg_double_writes:\n  query: |\n    SELECT slow\n  metrics:\n    - slow:\n        usage: x\n"


class RulesTest(unittest.TestCase):

    def said(self, rules=RULES, tests=TESTS, runbook=RUNBOOK, queries=QUERIES):
        return list(complaints(rules, tests, runbook, queries))

    def test_a_rule_that_is_as_it_should_be(self):
        self.assertEqual(self.said(), [])
        self.assertEqual(self.said(RULES.replace("pg_things_slow", "pg_double_writes_slow")), [])

    def test_a_rule_that_no_test_has_fire(self):
        self.assertEqual(self.said(tests=""), ["no test has rule Slow fire"])

    def test_a_rule_without_a_runbook(self):
        self.assertEqual(self.said(runbook="### Another thing\n"),
                         ["docs/operations.md has no section a-thing-is-slow"])

    def test_a_metric_that_nobody_exports(self):
        self.assertEqual(
            self.said(RULES.replace("pg_things_slow", "pg_double_writes_fast")),
            ["rules ask for pg_double_writes_fast, which postgres_exporter.yaml does not have"])


class DashboardTest(unittest.TestCase):

    def said(self, expr='rate(pg_double_writes_slow[5m])', legend="{{instance}} slow"):
        panel = {"title": "P", "targets": [{"expr": expr, "legendFormat": legend}]}
        return list(of_dashboard({"panels": [panel, {"title": "Text"}]}, QUERIES))

    def test_a_panel_that_is_as_it_should_be(self):
        self.assertEqual(self.said(), [])
        self.assertEqual(self.said("sum by (a, instance) (pg_double_writes_slow)"), [])

    def test_a_metric_that_nobody_exports(self):
        self.assertEqual(self.said("pg_double_writes_fast"),
                         ["panel P asks for pg_double_writes_fast, which is not exported"])

    def test_servers_that_look_alike(self):
        said = ["panel P does not say which server is which"]
        self.assertEqual(self.said(legend="slow"), said)
        self.assertEqual(self.said("sum by (a) (pg_double_writes_slow)"), said)


if __name__ == "__main__":
    unittest.main()
