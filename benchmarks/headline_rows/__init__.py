"""Parts of `benchmarks.headline`: its rows, their servers, the evaluation, the table and the chart."""
