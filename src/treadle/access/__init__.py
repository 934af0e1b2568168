"""Who may do what, and what keeps secrets secret."""
