"""What a configuration costs, without data: estimated without its hardware, or measured."""
