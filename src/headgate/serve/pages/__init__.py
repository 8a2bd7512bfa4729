"""HTML pages under /ui: views built from API operations, templates and live updates."""
