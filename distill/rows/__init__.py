"""Rows of files and their labels, as a training and a device read them."""
