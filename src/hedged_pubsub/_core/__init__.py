"""Decides: rules, budgets and numbers. Pure, and only the standard library is imported here."""
