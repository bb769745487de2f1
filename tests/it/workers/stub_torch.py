"""Stands for torch in a test of the recipe diffusers."""

float16, float32 = "float16", "float32"


class cuda:
    @staticmethod
    def is_available():
        return False
