"""The command line: one module for each noun. Commands import what they need when they run, so that help is fast."""
