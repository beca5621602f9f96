"""Tests of the linters: complaints about a spec or a manifest that does not fit the rest."""

from unittest import TestCase

from devtools.lint import complaints, of_patroni

SPEC = "Name: x\nVersion:        18.6\n"
MANIFEST = "exec:\n  command: [some-health, live]\n"
RECIPE = "FROM x\nCOPY --chmod=755 a.sh some-health /usr/local/bin/\n"


class LintTest(TestCase):

    def said(self, spec=SPEC, manifest=MANIFEST, recipe=RECIPE):
        return list(complaints(spec, "18.6", manifest, recipe))

    def test_all_fits(self):
        self.assertEqual(self.said(), [])

    def test_another_release(self):
        self.assertEqual(len(self.said(spec=SPEC.replace("18.6", "18.5"))), 1)

    def test_program_that_is_not_in_the_image(self):
        self.assertIn("calls some-health", self.said(recipe="FROM x\nCOPY a.sh /\n")[0])

    def test_patroni_knows_settings_and_values(self):
        known = "parameters:\n  checkpoint_timeout:\n  a_mode:\n    possible_values:\n    - 'off'\n    - x\n"
        patch = '+\t{"off", OFF, false},\n+\t{"x", X, false},\n+\t\t{"a_mode", PGC_SIGHUP, WAL,\n'
        self.assertEqual(list(of_patroni(known, patch)), [])
        self.assertEqual(
            [said.partition(" ")[2] for said in of_patroni(
                known, patch.replace("a_mode", "b_mode") + '+\t{"y", Y, false},\n')],
            ["has a_mode, which is no setting of ours", "lacks b_mode", "lacks the value y"])
