"""Real classes of the real libraries, built tiny with random weights: what proves the engines where no weights are."""
