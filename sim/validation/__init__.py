"""Does the theory predict? An environment suite, what is measured on it, and how it is scored."""
