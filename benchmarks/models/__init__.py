"""The models of ``benchmarks.train_step``: what all frameworks share (``tasks``), then each framework's own form of each."""
