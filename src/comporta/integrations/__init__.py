"""Where comporta meets other libraries. Each module needs one of them, and is imported by whoever has it."""
