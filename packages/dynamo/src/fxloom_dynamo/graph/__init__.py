"""The graph that is recorded: operators on fakes, in the program's order, with what they may raise and change."""
