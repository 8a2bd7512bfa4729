"""SDK: the app, its workflows and activities, and the functions that their code calls."""
