"""From a trained student to a checked, quantized bundle."""
