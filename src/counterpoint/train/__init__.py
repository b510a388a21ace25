"""From a recipe to a trained encoder: the recipe, the loop, checkpoints, comparisons."""
