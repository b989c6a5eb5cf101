"""Who makes Samples for a loader."""
