"""Ready LightningModules and their networks."""
