"""The notebook's furniture: predictions, quizzes and the record of progress."""
