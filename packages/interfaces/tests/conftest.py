collect_ignore = ["golden"]
