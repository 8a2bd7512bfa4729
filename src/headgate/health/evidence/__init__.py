"""Evidence: results of checks on single records, sampled, cached, pinned by incidents and archived."""
