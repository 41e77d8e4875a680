"""What is in force: the current GPU, the labels of its storages, its devices, and what is put back at the end."""
