"""Provides the interactive parts of notebooks: predictions, quizzes, and the record of progress."""
