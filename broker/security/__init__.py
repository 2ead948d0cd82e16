"""Who may connect, and how each proves it."""
