"""Fixtures of all tests."""

pytest_plugins = ("tests.helpers.emulated", "tests.helpers.leaks")
