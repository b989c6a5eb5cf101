"""The strategies, the data module and the command line for PyTorch Lightning."""
