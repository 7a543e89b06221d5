"""The tools service: rewards for tool use, and budgets."""
