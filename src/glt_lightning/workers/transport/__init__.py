"""Requests and replies between the processes of a job: one small protocol, in-process and over Arrow Flight."""
