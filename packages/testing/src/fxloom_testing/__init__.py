"""Contract suites that plugin authors run against their plugin."""
