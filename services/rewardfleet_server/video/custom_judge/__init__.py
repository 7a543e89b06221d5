"""The process in which a judge of the user's runs, from both sides."""
