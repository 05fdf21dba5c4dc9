"""From the raw log, whose operators alias and mutate, to the functional log, whose calls do neither."""
