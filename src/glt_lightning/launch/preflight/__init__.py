"""What is checked on all hosts before a launched job starts."""
