"""Where rows lie: the remote cache, the host tier and the device tier, and what lies in which."""
