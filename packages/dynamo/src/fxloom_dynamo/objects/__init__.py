"""The program's objects while it is captured: proxies of those that existed before, what was read and what was changed."""
