"""Who may connect, how each proves it, and what each may do."""
