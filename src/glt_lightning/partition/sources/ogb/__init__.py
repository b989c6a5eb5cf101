"""OGB data sets, read from the files that OGB distributes."""
