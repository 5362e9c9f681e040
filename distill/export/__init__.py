"""From a trained student to a checked, quantized and measured bundle."""
