"""The only door to the native library."""
