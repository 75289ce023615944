"""The parts of `benchmarks.headline`: its rows, their servers, the judgement, the table and the picture."""
