"""Banks of answers to the exercises: right ones that must pass, wrong ones that must be told what they are."""
