"""Fixtures of all tests."""

pytest_plugins = ("tests.helpers.leaks",)
